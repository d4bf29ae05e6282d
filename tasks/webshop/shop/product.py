"""What the shop sells and what a customer wants, as rows of JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PATH_MARK = "\u203a"


_AFTER_CARD = ', "category": '
"""Follows a card's fields in a row. In no text, since a quotation mark there is escaped."""


class Card(NamedTuple):
    """What a page of results shows of a product: the first fields of its row, read in a fraction of the time."""

    id: str
    title: str
    price: float
    price_tag: str

    @classmethod
    def from_json(cls, line: str) -> "Card":
        return cls(**json.loads(line[: line.index(_AFTER_CARD)] + "}"))


@dataclass(frozen=True, slots=True)
class Product:
    """A product, with what the pages show of it and what the reward looks at. Its first fields are those of a card."""

    id: str
    title: str
    price: float
    """What it costs; drawn once where the price tag names a range."""
    price_tag: str
    category: str
    query: str
    """The search by which its kind is known, such as "women's henleys"."""
    product_category: str
    """A path from the general to the special; its steps are divided by PATH_MARK."""
    description: str = ""
    bullets: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the option's name: what there is to choose from, in lower case."""
    attributes: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    """Of the title, in lower case: what kind of thing it is."""

    @property
    def text(self) -> str:
        """What the search engine indexes."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, self.bullets[0] if self.bullets else "", options]).lower()

    def to_json(self) -> str:
        return _row(self)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Product":
        row: dict[str, Any] = json.loads(line)
        row["options"] = {name: tuple(values) for name, values in row["options"].items()}
        return cls(**row | {name: tuple(row[name]) for name in ("bullets", "attributes", "nouns")})


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer wants, and how a purchase is measured by it."""

    id: str
    product_id: str
    """The product that it was made from; another one may do as well."""
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    """A synthetic goal names the option of each value; one that people wrote has the values alone."""
    price_upper: float
    query: str
    product_category: str
    nouns: tuple[str, ...]

    def to_json(self) -> str:
        return _row(self)

    @classmethod
    def from_json(cls, line: str | bytes) -> "Goal":
        row: dict[str, Any] = json.loads(line)
        if isinstance(row["options"], list):
            row["options"] = tuple(row["options"])
        return cls(**row | {name: tuple(row[name]) for name in ("attributes", "nouns")})


def _row(record: Product | Goal) -> str:
    # dataclasses.asdict copies deeply, which takes as long as all the rest of stocking a shop.
    return json.dumps({name: getattr(record, name) for name in record.__slots__}, ensure_ascii=False)
