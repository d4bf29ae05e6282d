"""Reads WebShop's catalogue from a mirror: the released files, or the catalogue as the search engine stores it.

A mirror holds `items_shuffle_1000.json`, or `products_1000.jsonl` (.xz or not), and `items_ins_v2_1000.json`; the
instructions that people wrote, `items_human_ins.json`, are optional. Prices are read as the original
reads them (web_agent_site/engine/engine.py at 64fa2a5), but for a price range the price is drawn with a seed.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import file_digest
from tasks.webshop.nouns import Tagger
from tasks.webshop.search import lines
from tasks.webshop.shop.product import Product
from tasks.webshop.task import TASK

SEED = 233
"""Seed of prices, price limits and the order of goals; the original uses the same number for the order."""
ITEMS, INSTRUCTIONS, HUMAN = "items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json"
DOCUMENTS = ("products_1000.jsonl", "products_1000.jsonl.xz")
LAYOUT = f"{ITEMS} or {' or '.join(DOCUMENTS)}, and {INSTRUCTIONS}"
DIGESTS = TASK.source.sha256
NO_PRICE = 100.0


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


def read_listings(mirror: Path, tagger: Tagger) -> list[Listing]:
    """Reads the catalogue, in its order.

    Raises:
        UsageError: the mirror lacks a file.
        IntegrityError: a file is not the released one.
    """
    items, instructions = list(_items(mirror)), _json_file(mirror, INSTRUCTIONS)
    human: Mapping[str, Any] = _json_file(mirror, HUMAN) if (mirror / HUMAN).is_file() else {}
    rng = random.Random(f"webshop/prices/{SEED}")
    try:
        return [
            _listing(item, instructions.get(item["asin"], {}), human.get(item["asin"]), nouns, rng)
            for item, nouns in zip(items, tagger.nouns(item["name"] for item in items), strict=True)
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
        return (json.loads(line)["product"] for line in lines(path))
    raise UsageError(f"{mirror} has no catalogue: a mirror of WebShop holds {LAYOUT}")


def _json_file(mirror: Path, name: str) -> Any:
    path = mirror / name
    if not path.is_file():
        raise UsageError(f"{mirror} has no {name}: a mirror of WebShop holds {LAYOUT}")
    if file_digest(path) != DIGESTS[name]:
        raise IntegrityError(f"{path} is not the released file: get a clean copy")
    return json.loads(path.read_text(encoding="utf-8"))


def _listing(
    item: dict[str, Any], known: Mapping[str, Any], human: Any, nouns: tuple[str, ...], rng: random.Random
) -> Listing:
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
        nouns=nouns,
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
