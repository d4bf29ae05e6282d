"""Digests of the tensors in a safetensors file, computed while its bytes pass by, so that it is read only once.

hasher = TensorHasher()
for block in blocks:
    copy.write(block)
    hasher.update(block)
weights_digest(folder, {"model.safetensors": hasher.digests()})

Digests that are not known are computed from the file.
"""

import hashlib
import struct
from collections import deque
from itertools import pairwise
from typing import NamedTuple

from a2rl.models.caps import MAX_JSON_BYTES, parse_json
from a2rl.models.checkpoint import Entry
from a2rl.models.finite import FiniteScan

PREFIX = 8
"""The number of bytes that hold the length of the header."""


class _Range(NamedTuple):
    """The bytes of one tensor, counted from the first byte after the header."""

    start: int
    end: int
    name: str
    dtype: str


class TensorHasher:
    """Takes the blocks of one file in order.

    It never refuses a file. Tensors of an invalid file, and those with numbers that are not finite, get no digest here;
    whoever needs one reads the file again and finds out what is wrong.
    """

    def __init__(self, most: int = MAX_JSON_BYTES) -> None:
        """Starts before the first byte of a file whose header is read if it has no more than `most` bytes."""
        self._most = most
        self.header_bytes = 0
        """How long the header was that was read."""
        self._head: bytearray | None = bytearray()
        """The bytes so far; None once the header is complete."""
        self._left: deque[_Range] = deque()
        self._position = 0
        self._hash = hashlib.sha256()
        self._scan: FiniteScan | None = None
        """Of the tensor whose bytes are passing."""
        self._digests: dict[str, str] = {}

    def update(self, block: bytes) -> None:
        """Adds the next bytes of the file."""
        if self._head is None:
            self._add(memoryview(block))
            return
        self._head += block
        if len(self._head) < PREFIX:
            return
        end = PREFIX + int(struct.unpack("<Q", self._head[:PREFIX])[0])
        if end > PREFIX + self._most:
            self._head = None
        elif len(self._head) >= end:
            head, self._head = self._head, None
            self.header_bytes = end
            self._left = _ranges(bytes(head[PREFIX:end]))
            self._add(memoryview(head)[end:])

    def digests(self) -> dict[str, str]:
        """Returns the SHA-256 (hex) of each tensor whose bytes have all passed, by name."""
        self._add(memoryview(b""))
        return dict(self._digests)

    def _add(self, data: memoryview) -> None:
        end = self._position + len(data)
        while self._left and self._left[0].start <= end:
            first = self._left[0]
            piece = data[max(0, first.start - self._position) : first.end - self._position]
            self._scan = self._scan or FiniteScan(first.dtype)
            self._scan.update(piece)
            self._hash.update(piece)
            if first.end > end:
                break
            if self._scan.is_finite:
                self._digests[first.name] = self._hash.hexdigest()
            self._hash, self._scan = hashlib.sha256(), None
            self._left.popleft()
        self._position = end


def _ranges(header: bytes) -> "deque[_Range]":
    """Returns the tensors in the order of their bytes; none if the header is invalid or two of them overlap."""
    try:
        entries = parse_json(header)
        entries.pop("__metadata__", None)
        found = {name: Entry.model_validate(entry) for name, entry in entries.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return deque()
    ranges = sorted(_Range(*entry.data_offsets, name, entry.dtype) for name, entry in found.items())
    overlap = any(later.start < earlier.end for earlier, later in pairwise(ranges))
    return deque() if overlap else deque(ranges)
