"""What a term adds to a document's score, to the last float32 as Lucene 8.11 computes it: k1 0.9 and b 0.4.

A document of length n that has a term f times gains x = f / (k1 * (1 - b + b * n / average)) by it, and its score
rises by `w - w / (1 + x)`, where w weighs the term: its rarity, times how often the query has it. Rounding never turns
two values about, so of two gains by a term the larger one never adds less. Lucene keeps a length in one byte.
"""

import numpy as np
from numpy.typing import NDArray

K1, B = np.float32(0.9), np.float32(0.4)
_ONE = np.float32(1)

Floats = NDArray[np.float32]


def rarity(documents: int, having: int) -> np.float32:
    """The weight of a term that `having` of the documents have."""
    return np.float32(np.log(1 + (documents - having + 0.5) / (having + 0.5)))


def scores(weight: np.float32, gains: Floats) -> Floats:
    return weight - weight / (_ONE + gains)


def length_bytes(lengths: NDArray[np.int32]) -> NDArray[np.uint8]:
    """What Lucene keeps of lengths: the byte of the greatest length that it can keep and that does not exceed it."""
    return (np.searchsorted(_LENGTHS, lengths, side="right") - 1).astype(np.uint8)


def gains_of_one(documents: int, terms: int) -> Floats:
    """What a document gains by a term that it has once, for each byte that its length may be kept in."""
    average = np.float32(terms / max(1, documents))
    return _ONE / (K1 * ((_ONE - B) + B * _LENGTHS.astype(np.float32) / max(average, _ONE)))


def _length_of(byte: int) -> int:
    """The length that Lucene's SmallFloat.byte4ToInt decodes: exact up to 40, then four significant bits."""
    exact = 24
    if byte < exact:
        return byte
    mantissa, shift = (byte - exact) & 7, ((byte - exact) >> 3) - 1
    return exact + (mantissa if shift < 0 else (mantissa | 8) << shift)


_LENGTHS = np.array([_length_of(byte) for byte in range(256)], dtype=np.int64)
