"""`python -m tests.webshop.scale 1000 100000 1180000` measures shops of these sizes: building, opening and steps.

The products are generated (catalogue.py); the real catalogue has 1,180,000. Building and use are measured in separate
processes, so that each has its own memory, and in CPU time, because each uses only one thread. Every search is for
different words, so that none is answered from the shop's cache.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tasks.webshop.shop import Goal, Product, Shop, VectorEnv, stock
from tests.webshop.catalogue import products

OPEN, STEPS = 64, 60
SEARCHED = 5
"""Words of a title that a customer searches for."""
SEARCHES = 200


class Stocked(NamedTuple):
    """The cost of building a shop."""

    stock_s: float
    stock_mib: float
    """At most while it is made, the files that are written included."""
    disk_mib: float


class Used(NamedTuple):
    """The cost of using an open shop."""

    open_s: float
    use_mib: float
    """With sessions open, the parts of files that were read included."""
    steps_per_s: float
    """Searches, items, pages under them and so on, in sessions side by side."""
    searches_pct: float
    """Of the steps."""
    other_step_us: float
    """That is no search."""
    search_ms: float
    """For words of a title."""
    title_ms: float
    """For a whole title."""


class Scale(NamedTuple):
    """The cost of a shop of one size."""

    products: int
    stocked: Stocked
    used: Used


def measure(count: int) -> Scale:
    """Builds a shop and uses it."""
    with tempfile.TemporaryDirectory() as folder:
        stocked = Stocked(*_child("stock", count, folder))
        return Scale(count, stocked, Used(*_child("use", count, folder)))


def _child(what: str, count: int, folder: str) -> list[float]:
    call = [sys.executable, "-m", "tests.webshop.scale", str(count), what, folder]
    return list(json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout))


def _stock(count: int, folder: Path) -> Stocked:
    """Builds a shop; the time for generating the products is not counted."""
    making_s = 0.0

    def timed() -> Iterator[Product]:
        nonlocal making_s
        made = products(count)
        while True:
            started = time.process_time()
            product = next(made, None)
            making_s += time.process_time() - started
            if product is None:
                return
            yield product

    started = time.process_time()
    stock(timed(), folder)
    stock_s = time.process_time() - started - making_s
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Stocked(stock_s, _memory_mib(), disk / 2**20)


def _use(folder: Path) -> Used:
    started = time.process_time()
    shop = Shop.open(folder)
    open_s = time.process_time() - started
    rng = random.Random(0)
    some = [shop.product(rng.randrange(len(shop))) for _ in range(OPEN)]
    env = VectorEnv(shop, max_steps=STEPS)
    env.reset([_goal(product) for product in some])
    searching_s = other_s = 0.0
    searches = 0
    for _ in range(STEPS):
        actions = [_action(session.available().clickables, session.goal, rng) for session in env.sessions]
        searching = [action if action.startswith("search") else None for action in actions]
        others = [None if action in searching else action for action in actions]
        searches += sum(action is not None for action in searching)
        searching_s += _seconds(env, searching)
        other_s += _seconds(env, others)
    titles = [shop.product(rng.randrange(len(shop))).title for _ in range(SEARCHES)]
    search_ms, title_ms = (
        _mean_ms(shop, queries) for queries in ([_some_words(title, rng) for title in titles], titles)
    )
    steps = OPEN * STEPS
    return Used(
        open_s,
        _memory_mib(),
        steps / (searching_s + other_s),
        100 * searches / steps,
        1e6 * other_s / (steps - searches),
        search_ms,
        title_ms,
    )


def _seconds(env: VectorEnv, actions: Sequence[str | None]) -> float:
    started = time.process_time()
    env.step(actions)
    return time.process_time() - started


def _mean_ms(shop: Shop, queries: Sequence[str]) -> float:
    started = time.process_time()
    for query in queries:
        shop.results(query, page=1)
    return 1000 * (time.process_time() - started) / len(queries)


def _goal(product: Product) -> Goal:
    return Goal(
        product.id, product.id, product.title, product.attributes, {}, 20.0, product.query, "Home", product.nouns
    )


def _action(clickables: list[str], goal: Goal, rng: random.Random) -> str:
    if clickables == ["search"]:
        return f"search[{_some_words(goal.instruction, rng)}]"
    return f"click[{rng.choice([name for name in clickables if name != 'buy now'])}]"


def _some_words(title: str, rng: random.Random) -> str:
    """Returns some words of a title in random order: there are 95,040 choices, so hardly any query is repeated."""
    return " ".join(rng.sample(title.split(" "), SEARCHED))


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(scales: Sequence[Scale]) -> Table:
    """Returns a table with a row for each figure; from the second shop on, also as a multiple of the first shop's."""
    found = Table("", *(f"{scale.products:,} products" for scale in scales), box=None)
    for column in found.columns[1:]:
        column.justify = "right"
    found.add_row("growth", *(f"{scale.products / scales[0].products:,.0f}x" for scale in scales))
    for part, names in (("stocked", Stocked._fields), ("used", Used._fields)):
        for name in names:
            values = [getattr(getattr(scale, part), name) for scale in scales]
            found.add_row(name.replace("_", " "), *(_figure(value, values[0]) for value in values))
    return found


def _figure(value: float, first: float) -> str:
    return f"{value:,.3g} ({value / first:,.2f}x)" if value < 100 else f"{value:,.0f} ({value / first:,.2f}x)"


def main() -> None:
    if sys.argv[2:] and sys.argv[2] in ("stock", "use"):
        count, what, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
        sys.stdout.write(json.dumps(_stock(count, folder) if what == "stock" else _use(folder)))
        return
    Console().print(table([measure(int(count)) for count in sys.argv[1:]]))


if __name__ == "__main__":
    main()
