"""What became of one tensor of the base model in a checkpoint."""

import hashlib
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from a2rl.models.checkpoint import Tensor
from a2rl.provenance.rows import (
    Columns,
    Matrix,
    Places,
    fit_columns,
    matrix_shape,
    mean_cosine,
    nearest,
    read_columns,
    read_rows,
    relative_delta,
    roughness,
    scaled_delta,
    share_kept,
    unit,
)

ROWS = 64
"""The number of rows of a matrix that are compared."""
FITTED = 256
"""The number of rows that are compared when columns are rearranged."""
SOUGHT = 64
"""The number of rows whose place is looked for among all base rows."""
WIDTH = 256
"""The number of columns by which a row is recognised in that search."""
FEWEST_ROWS, FEWEST_COLUMNS = 8, 8
"""Smaller matrices do not tell where they come from."""
RECOGNISED = 0.5
"""A rearrangement is believed if it brings this share of the rows back to their place."""


class Arrangement(StrEnum):
    """Where the base model's rows were found."""

    IN_PLACE = "in place"
    COLUMNS = "columns permuted or scaled"
    ROWS = "rows permuted"
    NOT_FOUND = "not found"


class Trace(NamedTuple):
    """One tensor of a checkpoint beside the base model's."""

    name: str
    rows: int
    values: int
    """The number of numbers in it."""
    kept: float | None
    """The share of its rows whose nearest base row is their own; None for vectors and small matrices."""
    delta: float
    """The length of the difference over the length of the base tensor, in place."""
    scaled_delta: float
    """The same after permutations and scaling were undone."""
    cosine: float
    """The mean cosine between rows and base rows, after they were undone."""
    arrangement: Arrangement
    roughness: float | None = None
    """1 if the difference is white noise; more if it was trained."""


class Sample(NamedTuple):
    """The rows that were drawn from a tensor."""

    places: Places
    rows: Matrix
    base: Matrix


def sample(name: str, tensor: Tensor, base: Tensor, digest: str, count: int = ROWS) -> Sample:
    """Reads the rows that the rule draws, from the checkpoint and from the base model."""
    places = draw(count, matrix_shape(base)[0], digest, name)
    return Sample(places, read_rows(tensor, places), read_rows(base, places))


def trace_in_place(name: str, found: Sample, base: Tensor) -> Trace:
    """Compares the drawn rows of a tensor with the base rows at the same places."""
    rows, columns = matrix_shape(base)
    is_matrix = rows >= FEWEST_ROWS and columns >= FEWEST_COLUMNS
    return Trace(
        name=name,
        rows=rows,
        values=rows * columns,
        kept=share_kept(found.rows, found.base) if is_matrix else None,
        delta=relative_delta(found.rows, found.base),
        scaled_delta=scaled_delta(found.rows, found.base) if is_matrix else relative_delta(found.rows, found.base),
        cosine=mean_cosine(found.rows, found.base),
        arrangement=Arrangement.IN_PLACE,
        roughness=roughness(found.rows, found.base) if is_matrix else None,
    )


def undo_columns(trace: Trace, found: Sample) -> tuple[Trace, Columns | None]:
    """Looks for an order and a scale of the columns that bring the rows back to their places.

    They are fitted on every second row and judged on the others.

    Returns:
        The better trace, and the columns if they are believed.
    """
    columns = fit_columns(found.rows[::2], found.base[::2])
    rows, base = columns.apply(found.rows[1::2]), found.base[1::2]
    kept = share_kept(rows, base)
    if kept is None or kept < RECOGNISED or kept <= (trace.kept or 0.0):
        return trace, None
    return _rearranged(trace, kept, rows, base, Arrangement.COLUMNS), columns


def undo_rows(trace: Trace, tensor: Tensor, base: Tensor, digest: str, columns: Columns | None) -> Trace:
    """Looks for rows of the checkpoint among all rows of the base model.

    Args:
        trace: What was found in place.
        tensor: The checkpoint's tensor.
        base: The base model's tensor.
        digest: The digest of the checkpoint's weights.
        columns: What has to be done to the columns first; None: nothing.
    """
    places = draw(SOUGHT, trace.rows, digest, trace.name, "sought")
    seen = draw(WIDTH, matrix_shape(base)[1], digest, trace.name, "seen")
    rows = read_rows(tensor, places)
    rows = columns.apply(rows)[:, seen] if columns else rows[:, seen]
    return _sought(trace, rows, read_columns(base, seen))


def undo_both(trace: Trace, tensor: Tensor, base: Tensor, digest: str, columns: Columns) -> Trace:
    """Looks for columns of the checkpoint among all columns of the base model, after its rows were rearranged as the
    columns of other matrices were."""
    count, width = matrix_shape(base)
    places = draw(SOUGHT, width, digest, trace.name, "sought columns")
    seen = draw(WIDTH, count, digest, trace.name, "seen rows")
    there = read_rows(tensor, columns.order[seen])[:, places] * columns.factors[seen][:, None]
    return _sought(trace, np.ascontiguousarray(there.T), np.ascontiguousarray(read_rows(base, seen).T))


def _sought(trace: Trace, rows: Matrix, base: Matrix) -> Trace:
    """Says how many rows have a base row of their own that is nearer than chance allows."""
    matches = nearest(rows, base)
    cosines = np.abs((unit(rows) * unit(base[matches])).sum(axis=1))
    rows_found = (cosines > _by_chance(base)) & (np.bincount(matches, minlength=len(base))[matches] == 1)
    kept = float(rows_found.mean())
    if kept < RECOGNISED or kept <= (trace.kept or 0.0):
        return trace
    signs = np.sign((rows * base[matches]).sum(axis=1, keepdims=True))
    return _rearranged(trace, kept, rows * signs, base[matches], Arrangement.ROWS)


def _by_chance(base: Matrix) -> float:
    """Returns a cosine that the nearest of all base rows does not reach by chance.

    The rows of a trained matrix resemble each other more than random rows do, so it is measured: how near is the
    nearest other row to one of the base model's own? The usual answer for random rows is the least that it returns.
    """
    few = unit(base[:: max(1, len(base) // SOUGHT)][:SOUGHT])
    cosines = np.abs(few @ unit(base).T)
    cosines[cosines > 1 - 1e-4] = 0  # the row itself
    random = float(np.sqrt(2 * np.log(max(2, len(base)) * 1000) / base.shape[1]))
    return max(min(random, 0.98), float(np.quantile(cosines.max(axis=1), 0.9)))


def _rearranged(trace: Trace, kept: float, rows: Matrix, base: Matrix, how: Arrangement) -> Trace:
    return trace._replace(
        kept=kept,
        scaled_delta=scaled_delta(rows, base),
        cosine=mean_cosine(rows, base),
        arrangement=how,
        roughness=roughness(rows, base),
    )


def draw(count: int, of: int, digest: str, name: str, purpose: str = "rows") -> Places:
    """Returns `count` different places below `of` in ascending order; all places if there are not more.

    Nobody knows them before the checkpoint is final, and anybody can repeat the draw: the generator is seeded with the
    digest of all weights. Whoever changes one weight, to hide something in other places, changes what is drawn.

    Args:
        count: How many to draw.
        of: The number of places.
        digest: The digest of the checkpoint's weights.
        name: The tensor's name.
        purpose: Draws for different purposes are independent.
    """
    if of <= count:
        return np.arange(of)
    seed = int.from_bytes(hashlib.sha256(f"{digest}\n{name}\n{purpose}".encode()).digest(), "big")
    chosen = np.random.default_rng(seed).choice(of, size=count, replace=False, shuffle=False)
    return np.sort(chosen)
