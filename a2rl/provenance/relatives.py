"""Known models beside a checkpoint: does its difference from the base model go where one of theirs goes?

A descendant of an instruct model of the same base differs from the base as that model does, and a little more. A merge
differs by a sum of such differences. Training of one's own goes another way.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from a2rl.models.checkpoint import Tensor, tensors_of
from a2rl.provenance.rows import SMALLEST, Matrix, is_readable, read_rows
from a2rl.provenance.trace import Sample

RIDGE = 1e-6


class Relative(NamedTuple):
    """A known model, and how much of it is in the checkpoint."""

    name: str
    cosine: float
    """Between the two differences from the base model."""
    part: float
    """The factor of its difference in the sum of known differences that comes nearest to the checkpoint's."""


class Relatives(NamedTuple):
    """What known models explain of a checkpoint's difference from the base model."""

    explained: float
    """The share of the squared length of the difference; 0 without known models."""
    each: tuple[Relative, ...]


class Kin:
    """Adds up, tensor by tensor, the products of differences of which the comparison consists."""

    def __init__(self, known: Mapping[str, Path]) -> None:
        """Args: known: folders of known models by name."""
        self._names = list(known)
        self._tensors = [tensors_of(folder) for folder in known.values()]
        count = len(self._names)
        self._among: NDArray[np.float64] = np.zeros((count, count))
        self._with: NDArray[np.float64] = np.zeros(count)
        self._own = 0.0

    def add(self, name: str, found: Sample, base: Tensor) -> None:
        """Adds the drawn rows of one tensor. Each tensor counts by its relative difference, whatever its size."""
        size = max(float(np.linalg.norm(found.base)), SMALLEST)
        own = (found.rows - found.base) / size
        others = [(self._rows(tensors.get(name), base, found) - found.base) / size for tensors in self._tensors]
        self._own += float((own * own).sum())
        for place, one in enumerate(others):
            self._with[place] += float((own * one).sum())
            for other_place, other in enumerate(others):
                self._among[place, other_place] += float((one * other).sum())

    def _rows(self, tensor: Tensor | None, base: Tensor, found: Sample) -> Matrix:
        """Returns a known model's rows; the base model's if it has no such tensor."""
        if tensor is None or tensor.shape != base.shape or not is_readable(tensor):
            return found.base
        return read_rows(tensor, found.places)

    def relatives(self) -> Relatives:
        """Returns the outcome."""
        lengths = np.sqrt(np.diagonal(self._among) * self._own)
        cosines = np.divide(self._with, lengths, out=np.zeros_like(self._with), where=lengths > SMALLEST)
        ridge = RIDGE * (np.trace(self._among) + SMALLEST) * np.eye(len(self._names))
        parts = np.linalg.solve(self._among + ridge, self._with) if self._names else self._with
        explained = float(parts @ self._with) / self._own if self._own > SMALLEST else 0.0
        each = zip(self._names, cosines.tolist(), parts.tolist(), strict=True)
        return Relatives(min(1.0, max(0.0, explained)), tuple(Relative(*one) for one in each))
