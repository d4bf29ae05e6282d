"""What the shop sells and what a customer wants, as rows of JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PATH_MARK = "\u203a"


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
