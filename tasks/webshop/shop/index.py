"""BM25 as WebShop's search engine ranks: Lucene 8.11 through pyserini 0.17, k1 0.9 and b 0.4, ties by id.

Scores are Lucene's to the last float32: the length of a document is kept in one byte, and what a term adds is
`w - w / (1 + tf * norm)`. The index is a folder of arrays, built once, in one pass over the documents and in memory
proportional to their distinct words, and memory-mapped after that.

    build([("B1", "red cotton shirt"), ("B2", "blue shirt")], Path("index"))
    [best, *_] = Index.open(Path("index")).search("red shirts")      # Hit(id="B1", score=0.53..., number=0)
"""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .analysis import terms

K1, B = np.float32(0.9), np.float32(0.4)
CHUNK = 20_000
"""Documents that are counted at a time."""
SCHEMA_VERSION = 1
META = "index.json"
"""Written last: a folder that has it is whole."""


class Hit(NamedTuple):
    """A document that a query found."""

    id: str
    score: float
    number: int
    """Its place among the documents that the index was built from."""


class NoIndex(Exception):
    """The folder holds no index, or one of another version."""


def build(documents: Iterable[tuple[str, str]], folder: Path) -> None:
    """Indexes documents, pairs of an id and a text, into an empty folder.

    Raises:
        ValueError: two documents have the same id.
    """
    vocabulary, ids, lengths = _Vocabulary(), list[str](), list[NDArray[np.int32]]()
    chunks: list[_Postings] = []
    source = iter(documents)
    while chunk := list(islice(source, CHUNK)):
        postings, length = _count([text for _, text in chunk], vocabulary, first=len(ids))
        ids += [each for each, _ in chunk]
        chunks.append(postings)
        lengths.append(length)
    encoded = np.array([each.encode() for each in ids], dtype=bytes)
    order = np.argsort(encoded, kind="stable")
    if (encoded[order][1:] == encoded[order][:-1]).any():
        raise ValueError("two documents have the same id")
    length = np.concatenate([*lengths, np.zeros(0, np.int32)])
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "ids.npy", encoded)
    np.save(folder / "ranks.npy", _inverse(order))
    np.save(folder / "norms.npy", (np.searchsorted(_LENGTHS, length, side="right") - 1).astype(np.uint8))
    _write_postings(chunks, vocabulary, folder)
    filled, total = int((length > 0).sum()), int(length.sum())
    meta = {"schema_version": SCHEMA_VERSION, "filled_documents": filled, "terms": total}
    (folder / META).write_text(json.dumps(meta))


class Index:
    """A built index, open for searching. Any number of readers may share the folder."""

    def __init__(self, folder: Path, meta: dict[str, int]) -> None:
        self._ids, self._ranks, self._norms, self._docs, self._counts = (
            # As plain arrays, which the mapping stays behind: slicing a numpy.memmap costs ten times as much.
            np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
            for name in ("ids", "ranks", "norms", "docs", "counts")
        )
        self._starts = np.load(folder / "starts.npy")
        text = (folder / "vocabulary.txt").read_text(encoding="utf-8")
        self._numbers = {word: number for number, word in enumerate(text.split("\n"))} if text else {}
        self._filled = meta["filled_documents"]
        average = np.float32(meta["terms"] / max(1, self._filled))
        one = np.float32(1)
        self._inverse_norms = one / (K1 * ((one - B) + B * _LENGTHS.astype(np.float32) / max(average, one)))

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
        score = np.zeros(len(self))
        for name, times in Counter(terms(query)).items():
            if (number := self._numbers.get(name)) is not None:
                docs = self._docs[self._starts[number] : self._starts[number + 1]]
                score[docs] += self._term_scores(number, times, docs)
        rounded = score.astype(np.float32)
        found = np.flatnonzero(rounded)
        if len(found) > top:
            least = np.partition(rounded[found], len(found) - top)[len(found) - top]
            found = found[rounded[found] >= least]
        best = found[np.lexsort((self._ranks[found], -rounded[found]))][:top]
        rows = zip(self._ids[best].tolist(), rounded[best].tolist(), best.tolist(), strict=True)
        return [Hit(name.decode(), points, number) for name, points, number in rows]

    def _term_scores(self, number: int, times: int, docs: NDArray[np.int32]) -> NDArray[np.float32]:
        """What a term adds to each document that has it; a word that a query repeats weighs as much more."""
        counts = self._counts[self._starts[number] : self._starts[number + 1]].astype(np.float32)
        rarity = np.float32(np.log(1 + (self._filled - len(docs) + 0.5) / (len(docs) + 0.5)))
        weight = np.float32(times) * rarity
        scores: NDArray[np.float32] = weight - weight / (1 + counts * self._inverse_norms[self._norms[docs]])
        return scores


class _Postings(NamedTuple):
    """Which term is in which document how often, sorted by term, then by document."""

    terms: NDArray[np.int32]
    docs: NDArray[np.int32]
    counts: NDArray[np.uint16]


class _Vocabulary(dict[str, int]):
    """The number of a piece of text between two spaces; `terms[starts[n] : starts[n + 1]]` are the terms of piece n.

    No word spans a space, and few pieces are new: looking them up is several times as fast as cutting each text anew.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Of the terms."""
        self.terms = array("i")
        self.starts = array("q", [0])

    def __missing__(self, piece: str) -> int:
        number = self[piece] = len(self.starts) - 1
        for name in terms(piece):
            self.terms.append(self.numbers.setdefault(name, len(self.numbers)))
        self.starts.append(len(self.terms))
        return number


def _count(texts: Sequence[str], vocabulary: _Vocabulary, first: int) -> tuple[_Postings, NDArray[np.int32]]:
    """The postings of some documents, numbered from `first`, and how many terms each has."""
    flat, sizes = list[str](), list[int]()
    for text in texts:
        pieces = text.split(" ")
        flat += pieces
        sizes.append(len(pieces))
    numbers = np.fromiter(map(vocabulary.__getitem__, flat), np.int64, len(flat))
    starts, known = np.array(vocabulary.starts), np.array(vocabulary.terms, np.int64)
    runs = (starts[1:] - starts[:-1])[numbers]
    docs = np.repeat(np.repeat(np.arange(len(texts)), sizes), runs)
    found = known[np.arange(len(docs)) + np.repeat(starts[numbers] - np.cumsum(runs) + runs, runs)]
    pairs, counts = np.unique(found * len(texts) + docs, return_counts=True)
    postings = _Postings(
        (pairs // len(texts)).astype(np.int32),
        (pairs % len(texts) + first).astype(np.int32),
        np.minimum(counts, np.iinfo(np.uint16).max).astype(np.uint16),
    )
    return postings, np.bincount(docs, minlength=len(texts)).astype(np.int32)


def _write_postings(chunks: list[_Postings], vocabulary: _Vocabulary, folder: Path) -> None:
    """All postings by term; within a term the documents stay in order, as the chunks are."""
    size = len(vocabulary.numbers)
    frequency = sum((np.bincount(chunk.terms, minlength=size) for chunk in chunks), np.zeros(size, np.int64))
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(frequency)])
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary.numbers), encoding="utf-8")
    np.save(folder / "starts.npy", starts)
    docs = _array_file(folder / "docs.npy", np.int32, int(starts[-1]))
    counts = _array_file(folder / "counts.npy", np.uint16, int(starts[-1]))
    free = starts[:-1].copy()
    for chunk in _consumed(chunks):
        found, begins, runs = np.unique(chunk.terms, return_index=True, return_counts=True)
        place = np.arange(len(chunk.terms)) + np.repeat(free[found] - begins, runs)
        docs[place], counts[place] = chunk.docs, chunk.counts
        free[found] += runs
    docs.flush()
    counts.flush()


def _consumed(chunks: list[_Postings]) -> Iterator[_Postings]:
    """The chunks from the first on, each one freed as soon as the next is asked for."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()


def _array_file(path: Path, dtype: type, size: int) -> "np.memmap[tuple[int, ...], np.dtype[np.int64]]":
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int32]:
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks


def _length_of(byte: int) -> int:
    """The length that Lucene's SmallFloat.byte4ToInt decodes: exact up to 40, then four significant bits."""
    exact = 24
    if byte < exact:
        return byte
    mantissa, shift = (byte - exact) & 7, ((byte - exact) >> 3) - 1
    return exact + (mantissa if shift < 0 else (mantissa | 8) << shift)


_LENGTHS = np.array([_length_of(byte) for byte in range(256)], dtype=np.int64)
"""What each byte means; the byte of a length is the last one that does not exceed it."""
