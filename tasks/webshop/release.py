"""Reads WebShop's catalogue from a mirror, and makes from it what customers want: products, wishes and goals.

A mirror holds `items_shuffle_1000.json`, or `products_1000.jsonl` (.xz or not), and `items_ins_v2_1000.json`; the
instructions that people wrote, `items_human_ins.json`, are optional. Prices are read as the original
reads them (web_agent_site/engine/engine.py at 64fa2a5), but for a price range the price is drawn with a seed.

The nouns of a product's title decide whether a purchase is the right kind of thing. WebShop finds them with spaCy's
model en_core_web_sm, which no lock file here has. Here every word of a title counts as a noun that has a letter in it
and is not on a short list of exceptions. This is close to the model's verdict, which takes most words of titles for
names: with en_core_web_sm 3.8.0, of 76,010 purchases, 11 for each of the 6,910 goals, 2.9% get another reward, but
never the purchase of the product that was asked for.

Goals are frozen by one seed. The original draws price limits before it sets its seed, so two starts of it differ in
half of the instructions. Here prices and limits are drawn with SEED, and the goals are shuffled with the same seed as
in the original: session 0 is about the same product and options in both.
"""

import itertools
import json
import lzma
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import file_digest
from tasks.webshop.shop.catalogue import Goal, Product
from tasks.webshop.task import TASK

SEED = 233
"""Seed of prices, price limits and the order of goals; the original uses the same number for the order."""
ITEMS, INSTRUCTIONS, HUMAN = "items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json"
DOCUMENTS = ("products_1000.jsonl", "products_1000.jsonl.xz")
LAYOUT = f"{ITEMS} or {' or '.join(DOCUMENTS)}, and {INSTRUCTIONS}"
DIGESTS = TASK.source.sha256
NO_PRICE = 100.0
PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))
NO_LIMIT = 1_000_000.0

_WORD = re.compile(r"[^\W_]+")
_OTHERS = """\
a all an and any are as at be but by can each etc for from full i if in into is it its made make more my no non not of
off on only or our out over per s so than that the their these this through to two under up used via we when with
without x you your based comfortable compatible designed fully included includes large true"""
_NO_NOUNS = frozenset(_OTHERS.split())


class Wish(NamedTuple):
    """An instruction for a product, without its options and price limit."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Option values that people asked for; synthetic wishes get options when goals are made."""


class Listing(NamedTuple):
    """A product of the catalogue with the wishes for it."""

    product: Product
    synthetic: Wish | None
    human: tuple[Wish, ...] = ()


def nouns(title: str) -> tuple[str, ...]:
    """Returns what counts as the nouns of a title, in lower case and as often as the title has them."""
    words = (word.lower() for word in _WORD.findall(title))
    return tuple(word for word in words if word not in _NO_NOUNS and any(map(str.isalpha, word)))


def read_listings(mirror: Path) -> list[Listing]:
    """Reads the catalogue, in its order.

    Raises:
        UsageError: the mirror lacks a file.
        IntegrityError: a file is not the released one.
    """
    instructions = _json_file(mirror, INSTRUCTIONS)
    human: Mapping[str, Any] = _json_file(mirror, HUMAN) if (mirror / HUMAN).is_file() else {}
    rng = random.Random(f"webshop/prices/{SEED}")
    try:
        return [
            _listing(item, instructions.get(item["asin"], {}), human.get(item["asin"]), rng) for item in _items(mirror)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"the catalogue in {mirror} is not WebShop's: {error!r}") from error


def _items(mirror: Path) -> Iterator[dict[str, Any]]:
    """Yields the released products, except those without an id and repeated ones."""
    seen = set()
    for item in _rows(mirror):
        if (asin := item["asin"]) != "nan" and len(asin) <= 10 and asin not in seen:
            seen.add(asin)
            yield item


def _rows(mirror: Path) -> Iterable[dict[str, Any]]:
    if (mirror / ITEMS).is_file():
        found: list[dict[str, Any]] = _json_file(mirror, ITEMS)
        return found
    if path := next((mirror / name for name in DOCUMENTS if (mirror / name).is_file()), None):
        return (json.loads(line)["product"] for line in _lines(path))
    raise UsageError(f"{mirror} has no catalogue: a mirror of WebShop holds {LAYOUT}")


def _json_file(mirror: Path, name: str) -> Any:
    path = mirror / name
    if not path.is_file():
        raise UsageError(f"{mirror} has no {name}: a mirror of WebShop holds {LAYOUT}")
    if file_digest(path) != DIGESTS[name]:
        raise IntegrityError(f"{path} is not the released file: get a clean copy")
    return json.loads(path.read_text(encoding="utf-8"))


def _listing(item: dict[str, Any], known: Mapping[str, Any], human: Any, rng: random.Random) -> Listing:
    prices = _prices(item["pricing"])
    bullets = item["small_description"]
    product = Product(
        id=item["asin"],
        title=item["name"],
        price=prices[0] if len(prices) == 1 else rng.uniform(*prices[:2]),
        price_tag=" to ".join(f"${price}" for price in prices[:2]),
        category=item["category"],
        query=item["query"].lower().strip(),
        product_category=item["product_category"],
        description=item["full_description"],
        bullets=tuple(bullets if isinstance(bullets, list) else [bullets]),
        options=_options(item["customization_options"]),
        attributes=tuple(known.get("attributes", item.get("Attributes", ("DUMMY_ATTR",)))),
        nouns=nouns(item["name"]),
    )
    text = known.get("instruction")
    synthetic = Wish(text, tuple(known["instruction_attributes"])) if text is not None else None
    wishes = human if human is not None else item.get("instructions", ())
    return Listing(product, synthetic, tuple(map(_human_wish, wishes)))


def _human_wish(row: Mapping[str, Any]) -> Wish:
    return Wish(row["instruction"], tuple(row["instruction_attributes"]), tuple(row["instruction_options"]))


def _prices(pricing: Any) -> list[float]:
    """Returns a price, or the lowest and the highest, of a list or a text such as "$12.99 - $20.00"."""
    if isinstance(pricing, str):
        pricing = [float(re.sub(r"[^\d.]", "", price)) for price in pricing.split("$")[1:]]
    return list(pricing or ()) or [NO_PRICE]


def _options(released: Any) -> dict[str, tuple[str, ...]]:
    return {
        name.lower(): tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
        for name, values in (released or {}).items()
        if values is not None
    }


def _lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file (.xz or not) that are not empty.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
            yield from (line for line in file if line.strip())
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def synthetic_goals(listings: Sequence[Listing]) -> list[Goal]:
    """Returns, for each product with a synthetic wish, one goal per combination of its options, as the reference does.

    All goals of a product have one price limit.
    """
    rng = random.Random(f"webshop/limits/synthetic/{SEED}")
    return _shuffled(
        goal for each in listings if each.synthetic for goal in _synthetic(each.product, each.synthetic, rng)
    )


def human_goals(listings: Sequence[Listing]) -> list[Goal]:
    """Returns the goals that people wrote, except those without attributes."""
    rng = random.Random(f"webshop/limits/human/{SEED}")
    return _shuffled(
        goal(each.product, wish, wish.options, _limit(each.product, rng))
        for each in listings
        for wish in each.human
        if wish.attributes
    )


def goal(product: Product, wish: Wish, options: Mapping[str, str] | tuple[str, ...], limit: float) -> Goal:
    """Returns a goal that this product fulfils, without an id. Wishes that people wrote already name the options."""
    wanted = (
        ", and ".join(f"{name}: {value}" for name, value in options.items()) if isinstance(options, Mapping) else ""
    )
    text = wish.text.strip(".") if not isinstance(options, Mapping) else wish.text
    text += f" with {wanted}" if wanted else ""
    return Goal(
        id="",
        product_id=product.id,
        instruction=text + (f", and price lower than {limit:.2f} dollars" if limit < NO_LIMIT else ""),
        attributes=wish.attributes,
        options=options,
        price_upper=limit,
        query=product.query,
        product_category=product.product_category,
        nouns=product.nouns,
    )


def split_goals(goals: Sequence[Goal], held_out: int) -> tuple[list[Goal], list[Goal]]:
    """Returns the eval set (the first goals), and for training the others about products that it does not use."""
    evaluation = list(goals[:held_out])
    taken = {goal.product_id for goal in evaluation}
    return evaluation, [goal for goal in goals[held_out:] if goal.product_id not in taken]


def _synthetic(product: Product, wish: Wish, rng: random.Random) -> Iterator[Goal]:
    limit = _limit(product, rng)
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        yield goal(product, wish, dict(zip(names, values, strict=True)), limit)


def _limit(product: Product, rng: random.Random) -> float:
    """Returns one of the next multiples of ten above the price, never the nearest; NO_LIMIT above all of them."""
    above = [step for step in PRICE_STEPS if step > product.price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def _shuffled(goals: Iterator[Goal]) -> list[Goal]:
    """Returns the goals in their final order, with ids: the product's id and the number of the goal for it."""
    numbers = Counter[str]()
    named = []
    for goal in goals:
        numbers[goal.product_id] += 1
        named.append(replace(goal, id=f"{goal.product_id}-{numbers[goal.product_id]:03d}"))
    random.Random(SEED).shuffle(named)
    return named
