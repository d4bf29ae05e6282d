"""BM25 as in WebShop's search engine: Lucene 8.11 through pyserini 0.17, k1 0.9 and b 0.4, ties by id.

Why no library: pyserini needs Java, and no Python library ranks exactly as Lucene does, with its float32 rounding,
which scores depend on.

A document of length n that has a term f times gains x = f / (k1 * (1 - b + b * n / average)) by it, and its score
rises by `w - w / (1 + x)`, where w is the term's rarity times its frequency in the query. Lucene stores the length of a
document in one byte. The index is a folder of arrays: each term has a list of the documents that contain it, with
their gains.

    build([("B1", "red cotton shirt"), ("B2", "blue shirt")], Path("index"))
    Index(Path("index")).search("red shirts").hits[0]      # Hit(id="B1", score=0.53..., number=0)
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .analysis import terms

K1, B = np.float32(0.9), np.float32(0.4)
_ONE = np.float32(1)
META = "index.json"
FOUND = 50
"""Maximum number of results of a search."""

Floats = NDArray[np.float32]


class Hit(NamedTuple):
    """A document that a query found."""

    id: str
    score: float
    number: int
    """Its position in the documents that the index was built from."""


class Results(NamedTuple):
    """The results of a query, or a page of them."""

    hits: tuple[Hit, ...]
    """Best first."""
    total: int
    """On all pages."""


class Index:
    """A built index."""

    def __init__(self, folder: Path) -> None:
        self._ids, self._ranks, self._docs, self._gains, self._starts = (
            np.load(folder / f"{name}.npy") for name in ("ids", "ranks", "docs", "gains", "starts")
        )
        text = (folder / "vocabulary.txt").read_text(encoding="utf-8")
        self._numbers = {word: number for number, word in enumerate(text.split("\n"))} if text else {}
        self._filled = json.loads((folder / META).read_text())["filled_documents"]

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, query: str, top: int = FOUND) -> Results:
        """Returns the best documents; equal scores are in the order of ids."""
        sums = np.zeros(len(self), np.float64)
        for name, times in Counter(terms(query)).items():
            if (number := self._numbers.get(name)) is not None:
                begin, end = self._starts[number : number + 2]
                weight = np.float32(times) * rarity(self._filled, int(end - begin))
                sums[self._docs[begin:end]] += scores(weight, self._gains[begin:end])
        found = np.flatnonzero(sums)
        rounded = sums[found].astype(np.float32)
        order = np.lexsort((self._ranks[found], -rounded))[:top]
        rows = zip(self._ids[found[order]].tolist(), rounded[order].tolist(), found[order].tolist(), strict=True)
        return Results(tuple(Hit(name.decode(), points, number) for name, points, number in rows), min(top, len(found)))


def rarity(documents: int, having: int) -> np.float32:
    """Returns the weight of a term that occurs in `having` of the documents."""
    return np.float32(np.log(1 + (documents - having + 0.5) / (having + 0.5)))


def scores(weight: np.float32, gains: Floats) -> Floats:
    """Returns what gains [n] add to scores, [n]."""
    return weight - weight / (_ONE + gains)


def length_bytes(lengths: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Encodes lengths as Lucene does: as the byte of the greatest representable length that is not larger."""
    return (np.searchsorted(_LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def gains_of_one(documents: int, terms: int) -> Floats:
    """Returns the gain by a term that occurs once, for each of the 256 encoded lengths."""
    average = np.float32(terms / max(1, documents))
    return _ONE / (K1 * ((_ONE - B) + B * _LENGTHS.astype(np.float32) / max(average, _ONE)))


def _length_of(byte: int) -> int:
    """Decodes a length like Lucene's SmallFloat.byte4ToInt: exact up to 40, then with four significant bits."""
    exact = 24
    if byte < exact:
        return byte
    mantissa, shift = (byte - exact) & 7, ((byte - exact) >> 3) - 1
    return exact + (mantissa if shift < 0 else (mantissa | 8) << shift)


_LENGTHS = np.array([_length_of(byte) for byte in range(256)], dtype=np.int64)


def build(documents: Iterable[tuple[str, str]], folder: Path) -> None:
    """Indexes documents, pairs of an id and a text, into a folder.

    Raises:
        ValueError: Two documents have the same id.
    """
    numbers: dict[str, int] = {}
    ids, lengths, postings = list[bytes](), list[int](), list[tuple[int, int, int]]()
    for doc, (name, text) in enumerate(documents):
        counts = Counter(numbers.setdefault(term, len(numbers)) for term in terms(text))
        ids.append(name.encode())
        lengths.append(counts.total())
        postings += ((number, doc, count) for number, count in counts.items())
    encoded = np.array(ids, dtype=bytes)
    order = np.argsort(encoded, kind="stable")
    if (encoded[order][1:] == encoded[order][:-1]).any():
        raise ValueError("two documents have the same id")
    filled, total = sum(length > 0 for length in lengths), sum(lengths)
    norms = length_bytes(np.array(lengths, np.int32))
    number, docs, times = np.array(sorted(postings), np.int64).reshape(-1, 3).T
    frequency = np.bincount(number, minlength=len(numbers))
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(frequency)])
    gains = times.astype(np.float32) * gains_of_one(filled, total)[norms][docs]
    arrays = {
        "ids": encoded, "ranks": np.argsort(order).astype(np.int32), "docs": docs.astype(np.int32), "gains": gains,
        "starts": starts,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for file, values in arrays.items():
        np.save(folder / f"{file}.npy", values)
    (folder / "vocabulary.txt").write_text("\n".join(numbers), encoding="utf-8")
    (folder / META).write_text(json.dumps({"schema_version": 2, "filled_documents": filled, "terms": total}))
