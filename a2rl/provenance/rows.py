"""Rows of stored tensors: reads some of them, and compares those of two matrices: which base row is nearest to each
row, and how far the matched rows are apart."""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from a2rl.models.checkpoint import BYTES, Tensor

TIE = 1e-5
"""Base rows that are equally near, such as those of tokens that never occur, are one row."""
SMALLEST = 1e-12
FEWEST_MOVED = 8
NOISE_DRAWS = 4
Matrix = NDArray[np.float32]
Places = NDArray[np.intp]
STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Columns(NamedTuple):
    """What has to be done to the columns of a checkpoint's matrix so that they are the base model's."""

    order: Places
    """The checkpoint's column for each of the base model's."""
    factors: Matrix
    """What each of these is multiplied with, its sign included."""

    def apply(self, rows: Matrix) -> Matrix:
        """Returns rows with their columns in the base model's order and scale."""
        return np.asarray(rows[:, self.order] * self.factors, dtype=np.float32)


def unit(rows: Matrix) -> Matrix:
    """Returns rows of length 1; rows of zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, SMALLEST), dtype=np.float32)


def share_kept(rows: Matrix, base: Matrix) -> float | None:
    """Returns the share of rows whose nearest base row by cosine is the one at their own place.

    The mean is taken from both first. Training may move all rows of an embedding in one direction, most of all those
    of tokens that do not occur. Then the base row that points most in this direction would be the nearest to many.

    Args:
        rows: Rows of the checkpoint.
        base: Base rows at the same places.

    Returns:
        The share; None if fewer than two base rows differ from their mean.
    """
    rows, centred = rows - rows.mean(axis=0), base - base.mean(axis=0)
    lives = np.linalg.norm(centred, axis=1) > np.maximum(TIE * np.linalg.norm(base, axis=1), SMALLEST)
    if lives.sum() < 2:
        return None
    cosines = unit(rows[lives]) @ unit(centred[lives]).T
    own = np.diagonal(cosines)
    return float((own >= cosines.max(axis=1) - TIE).mean())


def relative_delta(rows: Matrix, base: Matrix) -> float:
    """Returns the length of the difference, as a share of the length of the base rows."""
    return float(np.linalg.norm(rows - base) / max(float(np.linalg.norm(base)), SMALLEST))


def scaled_delta(rows: Matrix, base: Matrix) -> float:
    """Returns the relative delta after each row was scaled so that it comes nearest to its base row."""
    dots, squares = (rows * base).sum(axis=1), (rows * rows).sum(axis=1)
    factors = dots / np.maximum(squares, SMALLEST)
    return relative_delta(rows * factors[:, None], base)


def mean_cosine(rows: Matrix, base: Matrix) -> float:
    """Returns the mean cosine between rows and the base rows at their places."""
    return float((unit(rows) * unit(base)).sum(axis=1).mean())


def nearest(rows: Matrix, base: Matrix) -> Places:
    """Returns the base row that is nearest to each row, whatever its sign."""
    return np.asarray(np.abs(unit(rows) @ unit(base).T).argmax(axis=1))


def fit_columns(rows: Matrix, base: Matrix) -> Columns:
    """Finds the order, scale and sign of columns under which rows come nearest to the base rows at their places.

    Whether that is more than chance has to be judged on other rows than these.
    """
    order = np.asarray(nearest(np.ascontiguousarray(base.T), np.ascontiguousarray(rows.T)))
    there = rows[:, order]
    factors = (there * base).sum(axis=0) / np.maximum((there * there).sum(axis=0), SMALLEST)
    return Columns(order, np.asarray(factors, dtype=np.float32))


def roughness(rows: Matrix, base: Matrix) -> float | None:
    """Returns how far the difference of two matrices is from white noise, which has 1.

    It is the largest eigenvalue of the difference over that of noise of the same size. AdamW moves weights along few
    directions and gives more; optimisers that make all directions equal, such as Muon, give less. Rows and columns are
    brought to the same scale first, since rounding errors grow with the weights.

    Returns:
        The figure; None if the matrices are equal or too small.
    """
    difference = rows - base
    moved = difference[np.linalg.norm(difference, axis=1) > SMALLEST]
    if len(moved) < FEWEST_MOVED or moved.shape[1] < FEWEST_MOVED:
        return None
    return _largest(moved) / _of_noise(*moved.shape)


def _largest(matrix: Matrix) -> float:
    """Returns the largest eigenvalue after rows and columns were brought to one scale."""
    plain = unit(np.asarray(unit(np.asarray(unit(matrix).T)).T)).astype(np.float64)
    return float(np.linalg.eigvalsh(plain @ plain.T)[-1])


@cache
def _of_noise(count: int, width: int) -> float:
    rng = np.random.default_rng(0)
    draws = [rng.standard_normal((count, width)).astype(np.float32) for _ in range(NOISE_DRAWS)]
    return sum(map(_largest, draws)) / NOISE_DRAWS


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
    """Returns stored values as float32; numbers that float32 cannot hold and NaN become 0."""
    if dtype == "BF16":
        floats: Matrix = (values.astype(np.uint32) << 16).view(np.float32)
    else:
        with np.errstate(over="ignore"):
            floats = np.asarray(values, dtype=np.float32)
    return np.nan_to_num(floats, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def read_rows(tensor: Tensor, rows: Places) -> Matrix:
    """Returns some rows of a tensor. Only their bytes are read."""
    return as_floats(np.asarray(stored(tensor)[rows]), tensor.dtype)


def read_columns(tensor: Tensor, columns: Places) -> Matrix:
    """Returns some columns of a tensor: every row of it, but only these places in each."""
    return as_floats(np.asarray(stored(tensor)[:, columns]), tensor.dtype)
