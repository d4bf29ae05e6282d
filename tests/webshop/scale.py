"""`python -m tests.webshop.scale 100000` measures a shop of so many products: stocking, opening, memory, steps.

The products are made up, as long as real ones and with words as frequent as in real text; the real catalogue has
1,180,000. Stocking and use are measured in processes of their own, so that each one's memory is its own.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tasks.webshop.shop import Goal, Product, Shop, VectorEnv, stock

WORDS = 3_000_000
"""Different words at most; the word of rank r is 1/r as frequent as the first."""
LENGTH, SPREAD = 110, 0.7
"""Words of a product's text: the mean, and the spread of its logarithm."""
OPEN, STEPS = 64, 20
BLOCK = 1000


class Scale(NamedTuple):
    """What a shop of some size costs, in processor time: all of it is one thread's."""

    products: int
    stock_s: float
    stock_mib: float
    open_s: float
    use_mib: float
    """With sessions open."""
    steps_per_s: float
    """A search, an item, a page under it and so on, in sessions side by side."""


def products(count: int, seed: int = 0) -> Iterator[Product]:
    """Products that differ as real ones do, one by one."""
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        lengths = np.maximum(20, rng.lognormal(np.log(LENGTH) - SPREAD**2 / 2, SPREAD, BLOCK)).astype(int)
        ranks = WORDS ** rng.random(lengths.sum())
        words = [_word(rank) for rank in ranks.astype(int).tolist()]
        for length in lengths.tolist()[: count - made]:
            text, words = words[:length], words[length:]
            yield _product(f"B{made:09d}", text)
            made += 1


def _product(name: str, text: list[str]) -> Product:
    return Product(
        id=name, title=" ".join(text[:12]), price=10.0, price_tag="$10.0", category="garden", query=text[0],
        product_category="Home", description=" ".join(text[12:-8]), bullets=(" ".join(text[-8:-4]),),
        options={"color": tuple(text[-4:])}, attributes=(text[1],), nouns=tuple(text[:6]),
    )  # fmt: skip


def _word(rank: int) -> str:
    """A word for each rank, shorter for frequent ones: its digits, in letters."""
    letters = "aeioubcdfghjklmnprstvwxyz"
    word = ""
    while rank:
        rank, digit = divmod(rank, len(letters))
        word += letters[digit]
    return word or "a"


def measure(count: int) -> Scale:
    """Stocks a shop and uses it."""
    with tempfile.TemporaryDirectory() as folder:
        stocked = _child("stock", count, folder)
        used = _child("use", count, folder)
    return Scale(count, *stocked, *used)


def _child(what: str, count: int, folder: str) -> list[float]:
    call = [sys.executable, "-m", "tests.webshop.scale", str(count), what, folder]
    return list(json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout))


def _stock(count: int, folder: Path) -> list[float]:
    """Seconds without those that making the products up takes, and MiB."""
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
    return [time.process_time() - started - making_s, _memory_mib()]


def _use(folder: Path) -> list[float]:
    started = time.process_time()
    shop = Shop.open(folder)
    open_s = time.process_time() - started
    rng = random.Random(0)
    some = [shop.product(rng.randrange(len(shop))) for _ in range(OPEN)]
    env = VectorEnv(shop)
    env.reset([_goal(product) for product in some])
    started = time.process_time()
    for _ in range(STEPS):
        env.step([_action(session.available().clickables, session.goal, rng) for session in env.sessions])
    return [open_s, _memory_mib(), OPEN * STEPS / (time.process_time() - started)]


def _goal(product: Product) -> Goal:
    text = " ".join(product.title.split()[:5])
    return Goal(product.id, product.id, text, product.attributes, {}, 20.0, product.query, "Home", product.nouns)


def _action(clickables: list[str], goal: Goal, rng: random.Random) -> str:
    if clickables == ["search"]:
        return f"search[{goal.instruction}]"
    return f"click[{rng.choice([name for name in clickables if name != 'buy now'])}]"


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    count = int(sys.argv[1])
    if sys.argv[2:]:
        what, folder = sys.argv[2:]
        found = _stock(count, Path(folder)) if what == "stock" else _use(Path(folder))
        sys.stdout.write(json.dumps(found))
        return
    for name, value in measure(count)._asdict().items():
        sys.stdout.write(f"{name.replace('_', ' '):<12} {value:>12,.1f}\n")


if __name__ == "__main__":
    main()
