"""BM25 with the float32 rounding of Lucene 8.11 (k1 0.9, b 0.4), which no Python library reproduces.

A document of length n that has a term f times gains x = f / (k1 * (1 - b + b * n / average)) by it, and its score
rises by `w - w / (1 + x)`, where w is the term's rarity times its frequency in the query. Rounding is monotonic: the
larger of two gains never adds less. Lucene stores the length of a document in one byte.
"""

import numpy as np
from numpy.typing import NDArray

K1, B = np.float32(0.9), np.float32(0.4)
_ONE = np.float32(1)

Floats = NDArray[np.float32]


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
