"""Compares rows of two matrices: which base row is nearest to each row, and how far the matched rows are apart."""

from functools import cache
from typing import NamedTuple

import numpy as np

from a2rl.provenance.arrays import Matrix, Places

TIE = 1e-5
"""Base rows that are equally near, such as those of tokens that never occur, are one row."""
SMALLEST = 1e-12
FEWEST_MOVED = 8
NOISE_DRAWS = 4


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
