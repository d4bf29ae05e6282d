"""The regression of the length-controlled win rate, fitted to many resamples of the items at once.

Why no library: the package and scikit-learn fit one sample at a time, which is too slow for the intervals.

It is the package's (glm_winrate.py, `length_controlled_v1`): a logistic regression of the preferences on the difference
in length, the instruction's difficulty and the model, with an L1 penalty, on the model's annotations and, with less
weight, on those of the calibration. The package chooses the penalty by cross-validation; here it is given, so that a
thousand fits take about a second. On the same data both give the same rate, to some 0.002 points.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CALIBRATION_WEIGHT = 0.1
"""Weight of an annotation of the calibration: `regularize_to_baseline_lambda`, half of it for each of two models."""
STEPS, SWEEPS = 50, 60
"""Maximum number of Newton steps, and of sweeps over the three weights in each."""
CLOSE = 1e-8


class Annotated(NamedTuple):
    """A model's annotations and the calibration, as the regression sees them."""

    lengths: Array
    """Reference's minus model's, in characters."""
    difficulty: Array
    preferred: Array
    """Probability that the model's output is better."""
    calibration: Array
    """Rows of length (standardised, squashed), difficulty and preference."""


def annotated(annotations: Sequence[Mapping[str, Any]], calibration: Path) -> Annotated:
    """Returns the regression's data for annotations, which all need an `index` and a preference."""
    import pandas as pd

    gamed = pd.read_csv(calibration)
    difficulty = gamed.drop_duplicates("index")["instruction_difficulty"]
    return Annotated(
        np.array([len(each["output_1"]) - len(each["output_2"]) for each in annotations], dtype=float),
        difficulty.loc[[each["index"] for each in annotations]].to_numpy(dtype=float),
        np.array([each["preference"] for each in annotations], dtype=float) - 1,
        np.column_stack([np.tanh(gamed["std_delta_len"]), gamed["instruction_difficulty"], gamed["preference"]]),
    )


def pseudo_values(data: Annotated, strength: float) -> Array:
    """Returns what each item adds to the length-controlled win rate (0 to 1), by fits without each item in turn.

    These are the pseudo-values of the jackknife (Efron and Tibshirani 1993, chapter 11), with the rate as their mean.
    """
    count = len(data.preferred)
    rate, weights = rates(data, np.ones((1, count)), strength)
    without, _ = rates(data, 1 - np.eye(count), strength, np.repeat(weights, count, axis=0))
    values = count * rate - (count - 1) * without
    result: Array = values - values.mean() + rate
    return result


def rates(data: Annotated, times: Array, strength: float, start: Array | None = None) -> tuple[Array, Array]:
    """Returns the length-controlled win rate (0 to 1) of each resample, and the regression's weights.

    Args:
        data: all items.
        times: how often each item (column) is in each resample (row).
        strength: the inverse of the penalty's weight (`C`).
        start: initial weights of each resample.
    """
    weights = np.zeros((len(times), 3)) if start is None else start
    squashed = np.tanh(data.lengths / _spread(data.lengths, times)[:, None])
    for _ in range(STEPS):
        gradient, curvature = _derivatives(data, times, squashed, weights)
        moved = _penalised_step(weights, gradient, curvature, 1 / strength)
        change, weights = float(np.abs(moved - weights).max()), moved
        if change < CLOSE:
            break
    shares = _logistic(weights[:, 1:2] * data.difficulty + weights[:, 2:3])
    return (times * shares).sum(axis=1) / times.sum(axis=1), weights


def _logistic(odds: Array) -> Array:
    result: Array = 0.5 * (1 + np.tanh(0.5 * odds))  # of any odds, without overflow
    return result


def _spread(lengths: Array, times: Array) -> Array:
    """Returns the standard deviation of each resample, or 1 where all lengths are equal."""
    centred, count = lengths - lengths.mean(), times.sum(axis=1)
    mean = times @ centred / count
    variance = (times @ centred**2 - count * mean**2) / (count - 1)
    result: Array = np.where(variance > CLOSE, np.sqrt(np.maximum(variance, 0)), 1.0)
    return result


def _derivatives(data: Annotated, times: Array, squashed: Array, weights: Array) -> tuple[Array, Array]:
    """Returns gradients [resamples, 3] and Hessians [resamples, 3, 3] of the loss without its penalty."""
    length, difficulty, model = (weights[:, place : place + 1] for place in range(3))
    likely = _logistic(length * squashed + difficulty * data.difficulty + model)
    errors, slopes = times * (likely - data.preferred), times * likely * (1 - likely)
    gamed_length, gamed_difficulty, gamed_preferred = data.calibration.T
    gamed = _logistic(length * gamed_length + difficulty * gamed_difficulty)
    gamed_errors, gamed_slopes = (CALIBRATION_WEIGHT * each for each in (gamed - gamed_preferred, gamed * (1 - gamed)))
    gradient = np.stack(
        [
            (errors * squashed).sum(axis=1) + gamed_errors @ gamed_length,
            errors @ data.difficulty + gamed_errors @ gamed_difficulty,
            errors.sum(axis=1),
        ],
        axis=1,
    )
    by_length = slopes * squashed
    upper = {
        (0, 0): (by_length * squashed).sum(axis=1) + gamed_slopes @ gamed_length**2,
        (0, 1): by_length @ data.difficulty + gamed_slopes @ (gamed_length * gamed_difficulty),
        (0, 2): by_length.sum(axis=1),
        (1, 1): slopes @ data.difficulty**2 + gamed_slopes @ gamed_difficulty**2,
        (1, 2): slopes @ data.difficulty,
        (2, 2): slopes.sum(axis=1),
    }
    curvature = np.empty((len(times), 3, 3))
    for (row, column), value in upper.items():
        curvature[:, row, column] = curvature[:, column, row] = value
    return gradient, curvature


def _penalised_step(weights: Array, gradient: Array, curvature: Array, penalty: float) -> Array:
    """Minimises the quadratic approximation of the loss plus the L1 penalty, by coordinate descent."""
    moved = weights.copy()
    diagonal = np.einsum("rii->ri", curvature) + CLOSE
    for _ in range(SWEEPS):
        before = moved.copy()
        for place in range(3):
            slope = gradient[:, place] + np.einsum("ri,ri->r", curvature[:, place], moved - weights)
            target = diagonal[:, place] * moved[:, place] - slope
            moved[:, place] = np.sign(target) * np.maximum(np.abs(target) - penalty, 0) / diagonal[:, place]
        if np.abs(moved - before).max() < CLOSE / 10:
            break
    return moved
