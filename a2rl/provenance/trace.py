"""What became of one tensor of the base model in a checkpoint, from some of its rows.

Rows of stored tensors are read and compared: which base row is nearest to each row, and how far the matched rows are
apart.
"""

import hashlib
import math
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from a2rl.models.checkpoint import BYTES, Tensor

TIE = 1e-5
"""Base rows that are equally near, such as those of tokens that never occur, are one row."""
LIKE = 0.25
"""A row that comes from a base row has a greater cosine with it: 0.3 after a change of three times its length."""
SMALLEST = 1e-12
FEWEST_MOVED = 8
TOLERANCE, DEVIATIONS = 0.05, 4
"""How far from 1 the roughness of noise may be, and of small matrices in standard deviations."""
Matrix = NDArray[np.float64]
"""Checkpoints are in smaller types, so that no square or sum of what they hold is infinite, or zero, here."""
Places = NDArray[np.intp]
ROUNDS = 3
"""Factors of rows and of columns are fitted in turn, so often."""
AT_ONCE = 1024
"""Rows that are compared with all others at the same time: a matrix of 30,000 columns has a billion pairs of them."""
STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Columns(NamedTuple):
    """What has to be done to the columns of a checkpoint's matrix so that they are the base model's."""

    order: Places
    """The checkpoint's column for each of the base model's."""
    factors: Matrix
    """What each of these is multiplied with, its sign included."""

    def apply(self, rows: Matrix) -> Matrix:
        """Returns rows with their columns in the base model's order and scale."""
        return np.asarray(rows[:, self.order] * self.factors)


def over(values: Matrix, sizes: Matrix) -> Matrix:
    """Returns the values divided by the sizes, however small these are; 0 where the size is 0."""
    return np.divide(values, sizes, out=np.zeros_like(values), where=sizes > 0)


def unit(rows: Matrix) -> Matrix:
    """Returns rows of length 1; rows of zeros stay zeros."""
    return over(rows, np.linalg.norm(rows, axis=1, keepdims=True))


def level(rows: Matrix) -> Matrix:
    """Returns rows of length 1 whose columns had the same length before."""
    return unit(unit(unit(rows).T).T)


def share_kept(rows: Matrix, base: Matrix) -> float | None:
    """Returns the share of rows whose nearest base row by cosine is the one at their own place.

    The mean is taken from both first. Training may move all rows of an embedding in one direction, most of all those
    of tokens that do not occur. Then the base row that points most in this direction would be the nearest to many.
    A row that is far from all of them is not kept, such as one of zeros: a few columns of the base model make it the
    nearest to foreign rows. Columns count alike: large ones, which a norm can switch off, must not hide the others.

    Args:
        rows: Rows of the checkpoint.
        base: Base rows at the same places.

    Returns:
        The share; None if fewer than two base rows differ from their mean.
    """
    rows, centred = rows - rows.mean(axis=0), base - base.mean(axis=0)
    lives = np.linalg.norm(centred, axis=1) > TIE * np.linalg.norm(base, axis=1)
    if lives.sum() < 2:
        return None
    cosines = level(rows[lives]) @ level(centred[lives]).T
    own = np.diagonal(cosines)
    return float(((own >= cosines.max(axis=1) - TIE) & (own > LIKE)).mean())


def relative_delta(rows: Matrix, base: Matrix) -> float:
    """Returns the length of the difference, as a share of the length of the base rows."""
    return float(np.linalg.norm(rows - base) / max(float(np.linalg.norm(base)), SMALLEST))


def scaled(rows: Matrix, base: Matrix) -> Matrix:
    """Returns the rows, each with the factor with which it comes nearest to its base row, and each column with one if
    this brings rows nearer that it was not fitted to: a norm before the matrix may have the inverse."""
    found, factors = _rows_scaled(rows, base), np.ones(rows.shape[1])
    for _ in range(ROUNDS):
        fitted = _rows_scaled(rows[::2] * factors, base[::2])
        factors = factors * _factors(fitted, base[::2])
    both = _rows_scaled(rows * factors, base)
    return min(found, both, key=lambda each: relative_delta(each[1::2], base[1::2]))


def _rows_scaled(rows: Matrix, base: Matrix) -> Matrix:
    return np.asarray(rows * _factors(rows.T, base.T)[:, None])


def _factors(rows: Matrix, base: Matrix) -> Matrix:
    """Returns the factor for each column with which it comes nearest to the base model's."""
    return over((rows * base).sum(axis=0), (rows * rows).sum(axis=0))


def nearest(rows: Matrix, base: Matrix) -> Places:
    """Returns the base row that is nearest to each row, whatever its sign."""
    few, all_of_them = unit(rows).astype(np.float32), unit(base).astype(np.float32).T
    return np.concatenate(
        [np.abs(few[start : start + AT_ONCE] @ all_of_them).argmax(axis=1) for start in range(0, len(few), AT_ONCE)]
    )


def fit_columns(rows: Matrix, base: Matrix) -> Columns:
    """Finds the order, scale and sign of columns under which rows come nearest to the base rows at their places.

    Whether that is more than chance has to be judged on other rows than these.
    """
    order = np.asarray(nearest(np.ascontiguousarray(base.T), np.ascontiguousarray(rows.T)))
    there = rows[:, order]
    return Columns(order, _factors(there, base))


class Roughness(NamedTuple):
    """How far the difference of two matrices is from white noise."""

    value: float
    """1 for white noise; more if weights moved along few directions, less if they moved in all alike."""
    tolerance: float
    """How far from 1 noise of this size may be."""

    @property
    def is_noise(self) -> bool:
        """Whether it may be noise."""
        return abs(self.value - 1) <= self.tolerance


def roughness(rows: Matrix, base: Matrix) -> Roughness | None:
    """Compares the difference of two matrices with white noise.

    The value is the mean square of the difference's eigenvalues over that of noise of the same size. Of noise, its
    standard deviation is about 2 / (rows + columns), and more if few weights differ by much, as after rounding. AdamW
    gives more than noise; optimisers that make all directions equal, such as Muon, give less. Rows and columns are
    brought to the same scale first, since rounding errors grow with the weights.

    Returns:
        The figure; None if the matrices are equal or too small.
    """
    difference = rows - base
    moved = difference[np.linalg.norm(difference, axis=1) > SMALLEST * np.linalg.norm(base)]
    if len(moved) < FEWEST_MOVED or moved.shape[1] < FEWEST_MOVED:
        return None
    plain = level(moved)
    rows_moved, columns = plain.shape
    mean_square = float(((plain @ plain.T) ** 2).sum() / rows_moved)
    of_noise = 1 + (rows_moved - 3) / columns  # simulated: nearer to the mean of noise than its standard deviation
    tails = max(1.0, float((plain**4).mean() / (plain**2).mean() ** 2) / 3)  # 1 if normally distributed
    return Roughness(mean_square / of_noise, max(TOLERANCE, DEVIATIONS * 2 * tails / (rows_moved + columns)))


def matrix_shape(tensor: Tensor) -> tuple[int, int]:
    """Returns rows and columns of a tensor; the matrices of experts and similar stacks lie one below the other."""
    if len(tensor.shape) < 2:
        return 1, math.prod(tensor.shape)
    return math.prod(tensor.shape[:-1]), tensor.shape[-1]


def is_readable(tensor: Tensor) -> bool:
    """Says whether the tensor has numbers that can be compared: it is not empty and not quantised."""
    return tensor.dtype in BYTES and math.prod(tensor.shape) > 0


def stored(tensor: Tensor) -> NDArray[Any]:
    """Maps a tensor's file into memory, as a matrix of the stored type; bfloat16 as integers."""
    return np.memmap(
        tensor.file, dtype=STORED_AS[tensor.dtype], mode="r", offset=tensor.start, shape=matrix_shape(tensor)
    )


def as_floats(values: NDArray[Any], dtype: str) -> Matrix:
    """Returns stored values; numbers that float32 cannot hold and NaN become 0."""
    if dtype == "BF16":
        floats: NDArray[np.float32] = (values.astype(np.uint32) << 16).view(np.float32)
    else:
        with np.errstate(over="ignore"):
            floats = np.asarray(values, dtype=np.float32)
    return np.nan_to_num(floats.astype(np.float64), copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def read_rows(tensor: Tensor, rows: Places) -> Matrix:
    """Returns some rows of a tensor. Only their bytes are read."""
    return as_floats(np.asarray(stored(tensor)[rows]), tensor.dtype)


def read_columns(tensor: Tensor, columns: Places) -> Matrix:
    """Returns some columns of a tensor: every row of it, but only these places in each."""
    return as_floats(np.asarray(stored(tensor)[:, columns]), tensor.dtype)


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
    kept: float | None
    """The share of its rows whose nearest base row is their own; None for vectors and small matrices."""
    delta: float
    """The length of the difference over the length of the base tensor, in place."""
    scaled_delta: float
    """The same after permutations and scaling were undone."""
    arrangement: Arrangement
    roughness: Roughness | None = None
    """Whether the difference is white noise; None for vectors and small matrices."""

    @property
    def is_rearranged(self) -> bool:
        """Whether its rows or columns had to be put back in their places."""
        return self.arrangement in (Arrangement.COLUMNS, Arrangement.ROWS)


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
    delta = relative_delta(found.rows, found.base)
    trace = Trace(name, rows, kept=None, delta=delta, scaled_delta=delta, arrangement=Arrangement.IN_PLACE)
    if rows < FEWEST_ROWS or columns < FEWEST_COLUMNS:
        return trace
    return _measured(trace, share_kept(found.rows, found.base), found.rows, found.base, Arrangement.IN_PLACE)


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
    return _measured(trace, kept, rows, base, Arrangement.COLUMNS), columns


def undo_rows(trace: Trace, tensor: Tensor, base: Tensor, digest: str, columns: Columns | None) -> Trace:
    """Looks for rows of the checkpoint among all rows of the base model.

    Args:
        trace: What was found in place.
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
    return _measured(trace, kept, rows * signs, base[matches], Arrangement.ROWS)


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


def _measured(trace: Trace, kept: float | None, rows: Matrix, base: Matrix, how: Arrangement) -> Trace:
    near = scaled(rows, base)
    return trace._replace(
        kept=kept, scaled_delta=relative_delta(near, base), arrangement=how, roughness=roughness(near, base)
    )


def draw(count: int, of: int, digest: str, name: str, purpose: str = "rows") -> Places:
    """Returns `count` different places below `of` in ascending order; all places if there are not more.

    Nobody knows them before the checkpoint is final, and anybody can repeat the draw: the generator is seeded with the
    digest of all weights. Whoever changes one weight, to hide something in other places, changes what is drawn.

    Args:
        purpose: Draws for different purposes are independent.
    """
    if of <= count:
        return np.arange(of)
    seed = int.from_bytes(hashlib.sha256(f"{digest}\n{name}\n{purpose}".encode()).digest(), "big")
    chosen = np.random.default_rng(seed).choice(of, size=count, replace=False, shuffle=False)
    return np.sort(chosen)
