"""A shop on disk: its products, one JSON row a line, and the index to search them; neither is held in memory.

stock(products, Path("shop"))           # writes products.ndjson and index/
shop = Shop.open(Path("shop"))
page = [shop.card(hit.number) for hit in shop.results("red cotton shirt", page=1).hits]
"""

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .index import Hit, Index
from .indexing import build
from .product import Card, Product

PRODUCTS, INDEX = "products.ndjson", "index"
FOUND, PAGE_SIZE = 50, 10
"""Maximum number of results of a search, and of a page."""


class Results(NamedTuple):
    """The results of a query, or a page of them."""

    hits: tuple[Hit, ...]
    """Best first."""
    total: int
    """On all pages."""


def stock(products: Iterable[Product], folder: Path) -> None:
    """Writes a shop into a folder; no product is kept in memory.

    Raises:
        ValueError: two products have the same id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    offsets = [0]

    def written() -> Iterator[tuple[str, str]]:
        with (folder / PRODUCTS).open("wb") as file:
            for product in products:
                offsets.append(offsets[-1] + file.write(product.to_json().encode() + b"\n"))
                yield product.id, product.text

    build(written(), folder / INDEX)
    np.save(folder / INDEX / "offsets.npy", np.array(offsets, np.int64))


class Shop:
    """An open shop, which any number of sessions may share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = Index.open(folder / INDEX)
        self._offsets = np.load(folder / INDEX / "offsets.npy")
        # Read, not mapped: a page fault costs several times what reading a row does.
        self._rows = (folder / PRODUCTS).open("rb")
        self.product = lru_cache(maxsize=1 << 14)(self._product)
        """Returns the product of a row number."""
        self.card = lru_cache(maxsize=1 << 14)(self._card)
        """Returns what a page of results shows of the product of a row number."""
        self._found = lru_cache(maxsize=1 << 10)(self._search)

    @classmethod
    def open(cls, folder: Path) -> "Shop":
        """Opens a shop.

        Raises:
            IndexMissingError: `stock` did not finish.
        """
        return cls(folder)

    def __len__(self) -> int:
        return len(self._index)

    def results(self, query: str, page: int) -> Results:
        """Returns a page of the results of a query; pages are counted from 1."""
        # Most customers look at the first page only, and finding ten products takes half the time of finding fifty.
        hits, total = self._found(query, PAGE_SIZE if page == 1 else FOUND)
        return Results(hits[(page - 1) * PAGE_SIZE : page * PAGE_SIZE], total)

    def _product(self, number: int) -> Product:
        return Product.from_json(self._row(number))

    def _card(self, number: int) -> Card:
        return Card.from_json(self._row(number))

    def _row(self, number: int) -> str:
        begin, end = self._offsets[number : number + 2].tolist()
        return os.pread(self._rows.fileno(), end - begin, begin).decode()

    def _search(self, query: str, most: int) -> Results:
        return Results(tuple(self._index.search(query, most)), self._index.count(query, FOUND))
