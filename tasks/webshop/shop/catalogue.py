"""What a shop sells and what customers want, as rows of JSON, and a shop on disk with the index to search it.

stock(products, Path("shop"))           # writes products.ndjson and index/
shop = Shop(Path("shop"))
page = [shop.card(hit.number) for hit in shop.results("red cotton shirt", page=1).hits]
"""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .index import Index, Results, build

PATH_MARK = "\u203a"
PRODUCTS, INDEX, OFFSETS = "products.ndjson", "index", "index/offsets.npy"
PAGE_SIZE = 10


_AFTER_CARD = ', "category": '
"""Follows a card's fields in a row. No text contains it, since quotation marks are escaped."""


class Card(NamedTuple):
    """What a page of results shows of a product: the first fields of its row, which are fast to read."""

    id: str
    title: str
    price: float
    price_tag: str

    @classmethod
    def from_json(cls, line: str) -> "Card":
        """Reads the card of a product's row."""
        return cls(**json.loads(line[: line.index(_AFTER_CARD)] + "}"))


@dataclass(frozen=True, slots=True)
class Product:
    """A product with what pages show and what the reward compares. Its first fields are those of a card."""

    id: str
    title: str
    price: float
    """Dollars; drawn once where the price tag is a range."""
    price_tag: str
    category: str
    query: str
    """The search by which its kind is known, such as "women's henleys"."""
    product_category: str
    """A path from general to specific; PATH_MARK separates its steps."""
    description: str = ""
    bullets: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values to choose from, in lower case, by the option's name."""
    attributes: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    """Nouns of the title, in lower case, which say what kind of product it is."""

    @property
    def text(self) -> str:
        """The text that the search engine indexes."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, self.bullets[0] if self.bullets else "", options]).lower()

    def to_json(self) -> str:
        """Returns a row of JSON."""
        return _row(self)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Product":
        """Reads a row of JSON."""
        row: dict[str, Any] = json.loads(line)
        row["options"] = {name: tuple(values) for name, values in row["options"].items()}
        return cls(**row | {name: tuple(row[name]) for name in ("bullets", "attributes", "nouns")})


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer wants, with what the reward compares."""

    id: str
    product_id: str
    """The product that it was made from; others may fulfil it, too."""
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    """A synthetic goal names the option of each value; one that people wrote has the values alone."""
    price_upper: float
    query: str
    product_category: str
    nouns: tuple[str, ...]

    def to_json(self) -> str:
        """Returns a row of JSON."""
        return _row(self)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Goal":
        """Reads a row of JSON."""
        row: dict[str, Any] = json.loads(line)
        if isinstance(row["options"], list):
            row["options"] = tuple(row["options"])
        return cls(**row | {name: tuple(row[name]) for name in ("attributes", "nouns")})


def _row(record: Product | Goal) -> str:
    # dataclasses.asdict copies deeply, which would double the time to write a shop.
    return json.dumps({name: getattr(record, name) for name in record.__slots__}, ensure_ascii=False)


def read_goals(path: Path) -> list[Goal]:
    """Reads a file of goals."""
    return [Goal.from_json(line) for line in io.StringIO(path.read_text(encoding="utf-8"))]


def stock(products: Iterable[Product], folder: Path) -> None:
    """Writes a shop into a folder.

    Raises:
        ValueError: Two products have the same id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    offsets = [0]

    def written() -> Iterator[tuple[str, str]]:
        with (folder / PRODUCTS).open("wb") as file:
            for product in products:
                offsets.append(offsets[-1] + file.write(product.to_json().encode() + b"\n"))
                yield product.id, product.text

    build(written(), folder / INDEX)
    np.save(folder / OFFSETS, np.array(offsets, np.int64))


class Shop:
    """An open shop, which any number of sessions may share."""

    def __init__(self, folder: Path) -> None:
        self._index = Index(folder / INDEX)
        self._offsets = np.load(folder / OFFSETS)
        # Read, not mapped: a page fault costs several times what reading a row does.
        self._rows = (folder / PRODUCTS).open("rb")
        self.product = lru_cache(maxsize=1 << 14)(self._product)
        """Returns the product of a row number."""
        self.card = lru_cache(maxsize=1 << 14)(self._card)
        """Returns what a page of results shows of the product of a row number."""
        self._found = lru_cache(maxsize=1 << 10)(self._index.search)

    def __len__(self) -> int:
        return len(self._index)

    def results(self, query: str, page: int) -> Results:
        """Returns a page of the results of a query; pages are counted from 1."""
        hits, total = self._found(query)
        return Results(hits[(page - 1) * PAGE_SIZE : page * PAGE_SIZE], total)

    def _product(self, number: int) -> Product:
        return Product.from_json(self._row(number))

    def _card(self, number: int) -> Card:
        return Card.from_json(self._row(number))

    def _row(self, number: int) -> str:
        begin, end = self._offsets[number : number + 2].tolist()
        return os.pread(self._rows.fileno(), end - begin, begin).decode()
