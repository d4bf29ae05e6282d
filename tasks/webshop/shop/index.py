"""BM25 as WebShop's search engine ranks: Lucene 8.11 through pyserini 0.17, k1 0.9 and b 0.4, ties by id.

The index is a folder of arrays, built once (indexing.py) and memory-mapped after that. Each term has a list of the
documents that have it, and what each of them gains by it (bm25.py); a common one also has a row, in which a document is
looked up at once.

    build([("B1", "red cotton shirt"), ("B2", "blue shirt")], Path("index"))
    [best, *_] = Index.open(Path("index")).search("red shirts")      # Hit(id="B1", score=0.53..., number=0)

A search reads a few of its terms' lists and is exact all the same, by MaxScore (Turtle and Flood 1995), list by list,
from the term on that can add most to that which can add least. A document is met first in the list of the first term
that it has, where what the later terms can add at most bounds its score from above: below the score of the last of the
best found so far, it is left out, and the search ends where this holds for all documents not met yet.
"""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .analysis import terms
from .bm25 import Floats, gains_of_one, rarity, scores

SCHEMA_VERSION = 2
META = "index.json"
"""Written last: a folder that has it is whole."""
FIRST = 1024
"""Documents that are looked at together at first, so that the others meet a high bar."""
LOW = 1 - 1e-6
"""Scores are compared in float64 before they are rounded to float32, which changes 6e-8 of them at most: whatever is
lower by this much is lower after that, too."""

Docs = NDArray[np.int32]
Places = NDArray[np.intp]
"""What numpy takes an index by without making it over."""


class Hit(NamedTuple):
    """A document that a query found."""

    id: str
    score: float
    number: int
    """Its place among the documents that the index was built from."""


class NoIndex(Exception):
    """The folder holds no index, or one of another version."""


class Index:
    """A built index, open for searching. Any number of readers may share the folder."""

    def __init__(self, folder: Path, meta: dict[str, int]) -> None:
        self._ids, self._ranks, norms, self._docs, self._gains, self._peaks, self._rows = (
            # As plain arrays, which the mapping stays behind: slicing a numpy.memmap costs ten times as much.
            np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
            for name in ("ids", "ranks", "norms", "docs", "gains", "peaks", "rows")
        )
        self._starts = np.load(folder / "starts.npy")
        self._row_of = {number: row for row, number in enumerate(np.load(folder / "common.npy").tolist())}
        text = (folder / "vocabulary.txt").read_text(encoding="utf-8")
        self._numbers = {word: number for number, word in enumerate(text.split("\n"))} if text else {}
        self._filled = meta["filled_documents"]
        self._gain_of_one: Floats = gains_of_one(self._filled, meta["terms"])[norms]

    @classmethod
    def open(cls, folder: Path) -> "Index":
        """Raises NoIndex."""
        try:
            meta = json.loads((folder / META).read_text())
        except FileNotFoundError as error:
            raise NoIndex(f"{folder} holds no index") from error
        if meta["schema_version"] != SCHEMA_VERSION:
            raise NoIndex(f"{folder} holds an index of version {meta['schema_version']}, not {SCHEMA_VERSION}")
        return cls(folder, meta)

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, query: str, top: int = 50) -> list[Hit]:
        """The best documents, best first; equal scores in the order of ids."""
        asked = self._asked(query)
        docs = np.sort(_candidates(asked, top))
        found = _Found(docs, np.zeros(len(docs)))
        for term in asked:
            # In the order of the query, so that float64 rounds as it does where all documents are scored.
            found.add(term)
        rounded = found.sums.astype(np.float32)
        best = np.lexsort((self._ranks[docs], -rounded))[:top]
        rows = zip(self._ids[docs[best]].tolist(), rounded[best].tolist(), docs[best].tolist(), strict=True)
        return [Hit(name.decode(), points, number) for name, points, number in rows]

    def count(self, query: str, most: int) -> int:
        """How many documents a search finds; `most` where there are more."""
        met = set[int]().union(*(term.docs[:most].tolist() for term in self._asked(query)))
        return min(most, len(met))

    def _asked(self, query: str) -> list["_Term"]:
        return [
            self._term(number, times)
            for name, times in Counter(terms(query)).items()
            if (number := self._numbers.get(name)) is not None
        ]

    def _term(self, number: int, times: int) -> "_Term":
        """A word that a query repeats weighs as much more."""
        begin, end = self._starts[number : number + 2].tolist()
        weight = np.float32(times) * rarity(self._filled, end - begin)
        row = self._row_of.get(number)
        return _Term(
            weight=weight,
            most=float(scores(weight, self._peaks[number])),
            docs=self._docs[begin:end],
            gains=self._gains[begin:end],
            row=None if row is None else self._rows[row],
            gain_of_one=self._gain_of_one,
        )


class _Term(NamedTuple):
    """A term of a query."""

    weight: np.float32
    most: float
    """That it adds to a score."""
    docs: Docs
    """That have it, in order."""
    gains: Floats
    """Of these documents."""
    row: NDArray[np.uint8] | None
    """Of a common term: how often each document has it."""
    gain_of_one: Floats
    """Of each document, by any term that it has once."""

    def among(self, docs: Places) -> "_Having":
        """Those of some documents, in order, that have it."""
        if self.row is not None:
            # The quickest of numpy's ways: half the time of indexing, and a third of flatnonzero's on bytes.
            times = self.row.take(docs, mode="clip")
            places = np.flatnonzero(times != 0)
            return _Having(places, times[places] * self.gain_of_one[docs[places]])
        if len(self.docs) < len(docs):
            found = np.searchsorted(docs[:-1], self.docs)
            of_list = np.flatnonzero(docs[found] == self.docs)
            return _Having(found[of_list], self.gains[of_list])
        # Without the last one, so that each place found is one of the list; of the list's type, lest that be made over.
        found = np.searchsorted(self.docs[:-1], docs.astype(np.int32))
        places = np.flatnonzero(self.docs[found] == docs)
        return _Having(places, self.gains[found[places]])


class _Having(NamedTuple):
    """Which of some documents have a term."""

    places: NDArray[np.int64]
    """Among these documents."""
    gains: Floats


class _Found(NamedTuple):
    """Documents, and the sum of their scores for some of the terms."""

    docs: Places
    sums: NDArray[np.float64]

    def add(self, term: _Term) -> None:
        having = term.among(self.docs)
        self.sums[having.places] += scores(term.weight, having.gains)

    def reaching(self, bar: float) -> "_Found":
        """Those whose sums reach the bar."""
        kept = np.flatnonzero(self.sums >= bar)
        return self if len(kept) == len(self.docs) else _Found(self.docs[kept], self.sums[kept])


class _Best:
    """The best documents so far, and those that rounding may put among them."""

    def __init__(self, top: int) -> None:
        self.found = _Found(np.zeros(0, np.intp), np.zeros(0))
        self.bar = 0.0
        """What is below is not among the best."""
        self._top = top

    def add(self, more: _Found) -> None:
        """Documents that may have been added before: it is their first sum that counts."""
        more = self._best(more)
        if len(self.found.docs):
            new = np.flatnonzero(np.isin(more.docs, self.found.docs, invert=True, kind="sort"))
            more = _Found(more.docs[new], more.sums[new])
        docs = np.concatenate((self.found.docs, more.docs))
        self.found = self._best(_Found(docs, np.concatenate((self.found.sums, more.sums))))

    def _best(self, found: _Found) -> _Found:
        """Those of some different documents that may be among the best."""
        if (beyond := len(found.sums) - self._top) >= 0:
            self.bar = max(self.bar, float(np.partition(found.sums, beyond)[beyond]) * LOW)
        return found.reaching(self.bar)


def _candidates(asked: Sequence[_Term], top: int) -> Places:
    """Documents, the best ones of a query among them. Short lists are read together, and to the end."""
    ranked = sorted(asked, key=lambda term: -term.most)
    best = _Best(top)
    short = sum(size <= FIRST for size in accumulate(len(term.docs) for term in ranked))
    if short:
        few = np.unique(np.concatenate([term.docs for term in ranked[:short]])).astype(np.intp)
        if short == len(ranked):
            return few
        best.add(_summed(_Found(few, np.zeros(len(few))), ranked, best.bar))
    for place, term in enumerate(ranked[short:], start=short):
        later = ranked[place + 1 :]
        rest = sum(each.most for each in later)
        if term.most + rest < best.bar:
            break
        first = FIRST if place == short else 0
        for docs, gains in ((term.docs[:first], term.gains[:first]), (term.docs[first:], term.gains[first:])):
            points = scores(term.weight, gains)
            near = np.flatnonzero(points >= best.bar - rest)
            if len(near):
                met = _Found(docs[near].astype(np.intp), points[near].astype(np.float64))
                best.add(_summed(met, later, best.bar))
    return best.found.docs


def _summed(found: _Found, terms: Sequence[_Term], bar: float) -> _Found:
    """With the scores for more terms; without documents that stay below the bar."""
    rest = sum(term.most for term in terms)
    # Rows first: looking a document up costs a tenth of what it does in a list.
    for term in sorted(terms, key=lambda term: term.row is None):
        if not len(found.docs):
            break
        rest -= term.most
        found.add(term)
        found = found.reaching(bar - rest)
    return found
