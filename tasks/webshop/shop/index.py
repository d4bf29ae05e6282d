"""BM25 as in WebShop's search engine: Lucene 8.11 through pyserini 0.17, k1 0.9 and b 0.4, ties by id.

Why no library: pyserini needs Java, and no Python library ranks exactly as Lucene does, which scores depend on.

The index is a folder of arrays, built once (indexing.py) and then memory-mapped. Each term has a list of the documents
that contain it, with their gains (bm25.py); a common term also has a row, in which a document is looked up directly.

    build([("B1", "red cotton shirt"), ("B2", "blue shirt")], Path("index"))
    [best, *_] = Index.open(Path("index")).search("red shirts")      # Hit(id="B1", score=0.53..., number=0)

A search reads only a few of the lists, but is exact, by MaxScore (Turtle and Flood 1995): it reads the lists in the
order of their highest possible scores. When a document first appears, the highest possible scores of later terms bound
its total. It is dropped if this bound is below the lowest of the best scores so far, and the search ends where that
holds for all documents that have not appeared yet.
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
"""Written last: a folder with this file is complete."""
FIRST_BLOCK = 1024
"""Number of documents that are scored first, to get a high threshold for the others."""
ROUNDING_MARGIN = 1 - 1e-6
"""Scores are compared in float64 and then rounded to float32, which changes them by a factor of 6e-8 at most: a score
below this share of another one is also lower after rounding."""

Docs = NDArray[np.int32]
Places = NDArray[np.intp]
"""The type of indices that numpy does not have to convert."""


class Hit(NamedTuple):
    """A document that a query found."""

    id: str
    score: float
    number: int
    """Its position in the documents that the index was built from."""


class IndexMissingError(Exception):
    """The folder has no index, or one of another version."""


class Index:
    """A built index, open for searching. Any number of readers may share the folder."""

    def __init__(self, folder: Path, meta: dict[str, int]) -> None:
        self._ids, self._ranks, norms, self._docs, self._gains, self._peaks, self._rows = (
            # As plain arrays on the mapping: slicing a numpy.memmap takes ten times as long.
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
        """Opens an index.

        Raises:
            IndexMissingError: the folder has no index, or one of another version.
        """
        try:
            meta = json.loads((folder / META).read_text())
        except FileNotFoundError as error:
            raise IndexMissingError(f"{folder} has no index") from error
        if meta["schema_version"] != SCHEMA_VERSION:
            raise IndexMissingError(f"{folder} has an index of version {meta['schema_version']}, not {SCHEMA_VERSION}")
        return cls(folder, meta)

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, query: str, top: int = 50) -> list[Hit]:
        """Returns the best documents, best first; equal scores in the order of ids."""
        asked = self._asked(query)
        docs = np.sort(_candidates(asked, top))
        found = _PartialScores(docs, np.zeros(len(docs)))
        for term in asked:
            # In the order of the query, so that float64 rounds as if all documents were scored.
            found.add(term)
        rounded = found.sums.astype(np.float32)
        best = np.lexsort((self._ranks[docs], -rounded))[:top]
        rows = zip(self._ids[docs[best]].tolist(), rounded[best].tolist(), docs[best].tolist(), strict=True)
        return [Hit(name.decode(), points, number) for name, points, number in rows]

    def count(self, query: str, most: int) -> int:
        """Returns how many documents a search finds, at most `most`."""
        met = set[int]().union(*(term.docs[:most].tolist() for term in self._asked(query)))
        return min(most, len(met))

    def _asked(self, query: str) -> list["_Term"]:
        return [
            self._term(number, times)
            for name, times in Counter(terms(query)).items()
            if (number := self._numbers.get(name)) is not None
        ]

    def _term(self, number: int, times: int) -> "_Term":
        """Returns a term of a query; its weight is proportional to its frequency in the query."""
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
    """The most that it adds to a score."""
    docs: Docs
    """The documents that contain it, in order."""
    gains: Floats
    """The gains of these documents."""
    row: NDArray[np.uint8] | None
    """For a common term: its frequency in each document."""
    gain_of_one: Floats
    """The gain of each document by a term that occurs once."""

    def among(self, docs: Places) -> "_Matches":
        """Returns which of some documents, given in order, contain it."""
        if self.row is not None:
            # The fastest way in numpy: half the time of indexing, and a third of flatnonzero on bytes.
            times = self.row.take(docs, mode="clip")
            places = np.flatnonzero(times != 0)
            return _Matches(places, times[places] * self.gain_of_one[docs[places]])
        if len(self.docs) < len(docs):
            found = np.searchsorted(docs[:-1], self.docs)
            of_list = np.flatnonzero(docs[found] == self.docs)
            return _Matches(found[of_list], self.gains[of_list])
        # Without the last one, so that each position found is valid; of the list's type, to avoid converting the list.
        found = np.searchsorted(self.docs[:-1], docs.astype(np.int32))
        places = np.flatnonzero(self.docs[found] == docs)
        return _Matches(places, self.gains[found[places]])


class _Matches(NamedTuple):
    """Which of some documents contain a term."""

    places: NDArray[np.int64]
    """Positions among these documents."""
    gains: Floats


class _PartialScores(NamedTuple):
    """Documents, and the sum of their scores for some of the terms."""

    docs: Places
    sums: NDArray[np.float64]

    def add(self, term: _Term) -> None:
        having = term.among(self.docs)
        self.sums[having.places] += scores(term.weight, having.gains)

    def reaching(self, threshold: float) -> "_PartialScores":
        """Returns the documents whose sums reach the threshold."""
        kept = np.flatnonzero(self.sums >= threshold)
        return self if len(kept) == len(self.docs) else _PartialScores(self.docs[kept], self.sums[kept])


class _TopDocuments:
    """The best documents so far, and those that may be among them after rounding."""

    def __init__(self, top: int) -> None:
        self.found = _PartialScores(np.zeros(0, np.intp), np.zeros(0))
        self.threshold = 0.0
        """A score below it is not among the best."""
        self._top = top

    def add(self, more: _PartialScores) -> None:
        """Adds documents; of those added before, the first sum counts."""
        more = self._best(more)
        if len(self.found.docs):
            new = np.flatnonzero(np.isin(more.docs, self.found.docs, invert=True, kind="sort"))
            more = _PartialScores(more.docs[new], more.sums[new])
        docs = np.concatenate((self.found.docs, more.docs))
        self.found = self._best(_PartialScores(docs, np.concatenate((self.found.sums, more.sums))))

    def _best(self, found: _PartialScores) -> _PartialScores:
        """Returns those of some different documents that may be among the best."""
        if (beyond := len(found.sums) - self._top) >= 0:
            self.threshold = max(self.threshold, float(np.partition(found.sums, beyond)[beyond]) * ROUNDING_MARGIN)
        return found.reaching(self.threshold)


def _candidates(asked: Sequence[_Term], top: int) -> Places:
    """Returns documents that include the best ones of a query. Short lists are read together, and completely."""
    ranked = sorted(asked, key=lambda term: -term.most)
    best = _TopDocuments(top)
    short = sum(size <= FIRST_BLOCK for size in accumulate(len(term.docs) for term in ranked))
    if short:
        few = np.unique(np.concatenate([term.docs for term in ranked[:short]])).astype(np.intp)
        if short == len(ranked):
            return few
        best.add(_summed(_PartialScores(few, np.zeros(len(few))), ranked, best.threshold))
    for place, term in enumerate(ranked[short:], start=short):
        later = ranked[place + 1 :]
        rest = sum(each.most for each in later)
        if term.most + rest < best.threshold:
            break
        first = FIRST_BLOCK if place == short else 0
        for docs, gains in ((term.docs[:first], term.gains[:first]), (term.docs[first:], term.gains[first:])):
            points = scores(term.weight, gains)
            near = np.flatnonzero(points >= best.threshold - rest)
            if len(near):
                met = _PartialScores(docs[near].astype(np.intp), points[near].astype(np.float64))
                best.add(_summed(met, later, best.threshold))
    return best.found.docs


def _summed(found: _PartialScores, terms: Sequence[_Term], threshold: float) -> _PartialScores:
    """Adds the scores of more terms, and drops documents that stay below the threshold."""
    rest = sum(term.most for term in terms)
    # Rows first: a look-up in a row takes a tenth of the time of one in a list.
    for term in sorted(terms, key=lambda term: term.row is None):
        if not len(found.docs):
            break
        rest -= term.most
        found.add(term)
        found = found.reaching(threshold - rest)
    return found
