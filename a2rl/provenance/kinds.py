"""The kinds of checkpoints by their origin, the thresholds between them, and what known models explain.

`python -m tests.provenance_table --calibrate` prints the figures from which the thresholds were chosen;
`python -m tests.provenance_table` measures the errors on other models.

A descendant of an instruct model of the same base differs from the base as that model does, and a little more. A merge
differs by a sum of such differences. Training of one's own goes another way.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from a2rl.models.checkpoint import Tensor, tensors_of
from a2rl.provenance.trace import (
    SMALLEST,
    Arrangement,
    Matrix,
    Roughness,
    Sample,
    Trace,
    is_readable,
    read_rows,
    scaled,
)

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
        """Starts with the folders of known models, by name."""
        self._names = list(known)
        self._tensors = [tensors_of(folder) for folder in known.values()]
        self._products: list[Matrix] = [np.zeros((1 + len(known), 1 + len(known)))]

    def add(self, name: str, found: Sample, base: Tensor) -> None:
        """Adds the drawn rows of one tensor. Each tensor counts by its relative difference, whatever its size.

        Factors of rows and columns do not count: with one in a matrix and its inverse in another, or in a norm, a
        model computes the same. Nor do rows and columns count more because they differ by much, such as neurons in
        other places: a known model's own difference is often smaller.
        """
        all_rows = [found.rows, *(self._rows(tensors.get(name), base, found) for tensors in self._tensors)]
        differences = np.stack([scaled(rows, found.base) - found.base for rows in all_rows])
        differences /= max(float(np.linalg.norm(found.base)), SMALLEST)
        for axis in (0, 1):
            differences *= _limits(np.linalg.norm(differences[0], axis=axis, keepdims=True))
        flat = differences.reshape(len(differences), -1)
        self._products.append(flat @ flat.T)

    def _rows(self, tensor: Tensor | None, base: Tensor, found: Sample) -> Matrix:
        """Returns a known model's rows; the base model's if it has no such tensor."""
        if tensor is None or tensor.shape != base.shape or not is_readable(tensor):
            return found.base
        return read_rows(tensor, found.places)

    def relatives(self) -> Relatives:
        """Returns the outcome."""
        products = np.stack(self._products)
        total = (products * _limits(np.sqrt(products[:, :1, :1])) ** 2).sum(axis=0)
        own, beside, among = float(total[0, 0]), total[0, 1:], total[1:, 1:]
        lengths = np.sqrt(np.diagonal(among) * own)
        cosines = np.divide(beside, lengths, out=np.zeros_like(beside), where=lengths > SMALLEST)
        ridge = RIDGE * (np.trace(among) + SMALLEST) * np.eye(len(among))
        parts = np.linalg.solve(among + ridge, beside)
        explained = float(parts @ beside) / own if own > SMALLEST else 0.0
        each = zip(self._names, cosines.tolist(), parts.tolist(), strict=True)
        return Relatives(min(1.0, max(0.0, explained)), tuple(Relative(*one) for one in each))


def _limits(lengths: Matrix) -> Matrix:
    """Returns factors that make no length greater than the median of those that are not 0."""
    typical = float(np.median(lengths[lengths > 0])) if lengths.any() else 0.0
    return np.asarray(typical / np.maximum(lengths, max(typical, SMALLEST)))


SAME = 1e-3
"""A tensor with a smaller relative delta is the base model's."""
OWN = 0.5
"""A matrix that keeps a smaller share of its rows is foreign: unrelated matrices keep about one row in a hundred."""
WHOLLY_FOREIGN = 0.5
"""If this share of the matrices is foreign, so is the model. The tensors of the vocabulary are not counted."""
NOISY, TRAINED = 0.9, 1.5
"""A checkpoint differs by noise if this share of the matrices that differ does so, and no matrix is rougher than the
second figure says. Many steps of Muon come near to noise in inner matrices; embeddings are trained with AdamW."""
EXPLAINED, ALIKE = 0.5, 0.35
"""A difference that known models explain by this share, or that goes this far (cosine) in the direction of one, is not
the agent's own."""
PART = 0.1
"""A known model with a larger factor is a part of a merge..."""
WHOLE = 0.75
"""...and with this factor and no other part, it is the whole."""


class Kind(StrEnum):
    """Where a checkpoint comes from."""

    BASE = "base"
    NEAR_COPY = "near-copy"
    DESCENDANT = "descendant"
    SIBLING = "sibling"
    MERGE = "merge"
    PART_FOREIGN = "part foreign"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


class Provenance(NamedTuple):
    """Where a checkpoint comes from, with the map over its tensors from which this was concluded."""

    kind: Kind
    why: str
    foreign: tuple[str, ...]
    """The names of the foreign tensors."""
    kept: float | None
    """The mean share of rows that are nearest to their own base row."""
    delta: float
    """The median relative delta of the matrices, after permutations and scaling were undone."""
    roughness: float | None
    """The median roughness of the matrices' differences."""
    relatives: Relatives
    traces: tuple[Trace, ...]
    left_out: int = 0
    """The number of tensors that could not be compared, such as quantised ones."""

    @property
    def may_be_trained(self) -> bool:
        """Whether a checkpoint that looks like a copy may be trained, which its score shows: it differs by noise, by
        factors, as those of (IA)^3, or hardly at all, but not by nothing. No training permutes rows or columns."""
        if self.kind is Kind.BASE:
            return any(trace.delta > 0 for trace in self.traces)
        return self.kind is Kind.NEAR_COPY and not any(trace.is_rearranged for trace in self.traces)

    @property
    def is_copy(self) -> bool:
        """Whether it is the other model, rearranged or with noise. Training at a low rate changes as little, but not
        as noise does."""
        moved = _moved(self.traces)
        return self.kind is Kind.NEAR_COPY or (self.kind is Kind.BASE and (not moved or _noisy(moved) >= NOISY))


def classify(
    traces: Sequence[Trace], relatives: Relatives, vocabulary: frozenset[str] = frozenset(), left_out: int = 0
) -> Provenance:
    """Concludes from the map over tensors where a checkpoint comes from.

    Args:
        relatives: What known models explain.
        left_out: The number of tensors without a trace.
    """
    matrices = [trace for trace in traces if trace.kept is not None]
    foreign = tuple(trace.name for trace in matrices if (trace.kept or 0.0) < OWN)
    moved = _moved(traces)
    kind, why = _kind(traces, matrices, foreign, _noisy(moved), relatives, vocabulary)
    return Provenance(
        kind=kind,
        why=why,
        foreign=foreign,
        kept=sum(trace.kept or 0.0 for trace in matrices) / len(matrices) if matrices else None,
        delta=median(trace.scaled_delta for trace in matrices or traces) if traces else 0.0,
        roughness=median(each.value for each in moved) if moved else None,
        relatives=relatives,
        traces=tuple(traces),
        left_out=left_out,
    )


def _moved(traces: Sequence[Trace]) -> list[Roughness]:
    return [trace.roughness for trace in traces if trace.kept is not None and trace.roughness is not None]


def _noisy(moved: Sequence[Roughness]) -> float:
    """Returns the share of the differences that are noise; 0 if one of them was surely trained."""
    can_be_noise = moved and all(each.value <= TRAINED for each in moved)
    return sum(each.is_noise for each in moved) / len(moved) if can_be_noise else 0.0


def _kind(
    traces: Sequence[Trace],
    matrices: Sequence[Trace],
    foreign: tuple[str, ...],
    noisy: float,
    relatives: Relatives,
    vocabulary: frozenset[str],
) -> tuple[Kind, str]:
    if not matrices:
        return Kind.UNKNOWN, "no matrix could be compared"
    if all(trace.delta < SAME for trace in traces):
        return Kind.BASE, f"no tensor differs from the base model by {SAME:g} of its length"
    if foreign:
        inner = [trace.name for trace in matrices if trace.name not in vocabulary] or [trace.name for trace in matrices]
        is_wholly = len(set(inner) & set(foreign)) >= WHOLLY_FOREIGN * len(inner)
        why = f"{len(foreign)} of {len(matrices)} matrices have no rows of the base model"
        return Kind.FOREIGN if is_wholly else Kind.PART_FOREIGN, why
    return _known(relatives) or _own(matrices, noisy)


def _own(matrices: Sequence[Trace], noisy: float) -> tuple[Kind, str]:
    """Distinguishes training from copies of the base model that look different."""
    moved = [trace for trace in matrices if trace.delta >= SAME or trace.arrangement is not Arrangement.IN_PLACE]
    if not moved:
        return Kind.DESCENDANT, "only vectors differ from the base model, such as norms"
    rearranged = sum(trace.is_rearranged for trace in moved)
    if all(trace.scaled_delta < SAME for trace in moved):
        how = "rearranged" if rearranged else "scaled"
        return Kind.NEAR_COPY, f"the base model with rows or columns {how}, and no other change"
    if noisy >= NOISY:
        return Kind.NEAR_COPY, f"the difference from the base model is noise in {noisy:.0%} of the matrices that differ"
    if rearranged:
        return Kind.UNKNOWN, f"the rows or columns of {rearranged} matrices are permuted, which no training does"
    return Kind.DESCENDANT, "every matrix has the base model's rows"


def _known(relatives: Relatives) -> tuple[Kind, str] | None:
    """Says whether the difference from the base model is that of known models."""
    nearest = max(relatives.each, key=lambda each: each.cosine, default=None)
    if nearest is None or (relatives.explained < EXPLAINED and nearest.cosine < ALIKE):
        return None
    parts = [each for each in relatives.each if abs(each.part) >= PART]
    if len(parts) <= 1 and nearest.part >= WHOLE:
        return Kind.SIBLING, f"it differs from the base model as {nearest.name} does (cosine {nearest.cosine:.2f})"
    names = ", ".join(f"{each.part:.2f} of {each.name}" for each in parts) or nearest.name
    return Kind.MERGE, f"known models explain {relatives.explained:.0%} of its difference from the base model: {names}"
