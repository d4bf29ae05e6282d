"""Builds the index that index.py searches, in one pass; memory grows with the number of distinct words."""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .analysis import terms
from .bm25 import gains_of_one, length_bytes
from .index import META, SCHEMA_VERSION

CHUNK = 20_000
"""Number of documents that are counted together."""
COMMON = 32
"""A term in more than one of this many documents gets a row. Together rows take less space than the lists."""


def build(documents: Iterable[tuple[str, str]], folder: Path) -> None:
    """Indexes documents, pairs of an id and a text, into an empty folder.

    Raises:
        ValueError: two documents have the same id.
    """
    vocabulary, ids, lengths = _Vocabulary(), list[str](), [np.zeros(0, np.int32)]
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
    length = np.concatenate(lengths)
    filled, total = int((length > 0).sum()), int(length.sum())
    norms = length_bytes(length)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "ids.npy", encoded)
    np.save(folder / "ranks.npy", _inverse(order))
    np.save(folder / "norms.npy", norms)
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary.numbers), encoding="utf-8")
    _write_postings(chunks, len(vocabulary.numbers), gains_of_one(filled, total)[norms], folder)
    meta = {"schema_version": SCHEMA_VERSION, "filled_documents": filled, "terms": total}
    (folder / META).write_text(json.dumps(meta))


class _Postings(NamedTuple):
    """The frequency of each term in each document, sorted by term, then by document."""

    terms: NDArray[np.int32]
    docs: NDArray[np.int32]
    counts: NDArray[np.uint16]


class _Vocabulary(dict[str, int]):
    """The number of a piece of text between two spaces; `terms[starts[n] : starts[n + 1]]` are the terms of piece n.

    No word spans a space, and few pieces are new, so looking them up is several times as fast as splitting each text.
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
    """Returns the postings of some documents, numbered from `first`, and the number of terms of each."""
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


def _write_postings(chunks: list[_Postings], size: int, gain_of_one: NDArray[np.float32], folder: Path) -> None:
    """Writes all postings by term; within a term the documents keep the order of the chunks."""
    frequency, most = np.zeros(size, np.int64), np.zeros(size, np.uint16)
    for chunk in chunks:
        found, begins, runs = np.unique(chunk.terms, return_index=True, return_counts=True)
        frequency[found] += runs
        most[found] = np.maximum(most[found], np.maximum.reduceat(chunk.counts, begins) if len(begins) else 0)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(frequency)])
    common = np.flatnonzero((frequency * COMMON > len(gain_of_one)) & (most <= np.iinfo(np.uint8).max))
    row_of = np.full(size, -1, np.int32)
    row_of[common] = np.arange(len(common))
    peaks = np.zeros(size, np.float32)
    docs = _array_file(folder / "docs.npy", np.int32, (int(starts[-1]),))
    gains = _array_file(folder / "gains.npy", np.float32, (int(starts[-1]),))
    rows = _array_file(folder / "rows.npy", np.uint8, (len(common), len(gain_of_one)))
    free = starts[:-1].copy()
    for chunk in _consumed(chunks):
        found, begins, runs = np.unique(chunk.terms, return_index=True, return_counts=True)
        place = np.arange(len(chunk.terms)) + np.repeat(free[found] - begins, runs)
        gained = chunk.counts.astype(np.float32) * gain_of_one[chunk.docs]
        docs[place], gains[place] = chunk.docs, gained
        free[found] += runs
        peaks[found] = np.maximum(peaks[found], np.maximum.reduceat(gained, begins) if len(begins) else 0)
        row = row_of[chunk.terms]
        rows[row[row >= 0], chunk.docs[row >= 0]] = chunk.counts[row >= 0]
    for file in (docs, gains, rows):
        file.flush()
    for name, values in (("starts", starts), ("peaks", peaks), ("common", common)):
        np.save(folder / f"{name}.npy", values)


def _consumed(chunks: list[_Postings]) -> Iterator[_Postings]:
    """Yields the chunks in order, and frees each one when the next is requested."""
    chunks.reverse()
    while chunks:
        yield chunks.pop()


def _array_file(path: Path, dtype: type, shape: tuple[int, ...]) -> "np.memmap[tuple[int, ...], np.dtype[np.int64]]":
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _inverse(order: NDArray[np.int64]) -> NDArray[np.int32]:
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return ranks
