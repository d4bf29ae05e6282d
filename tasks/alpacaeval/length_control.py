"""The regression of the length-controlled win rate (alpaca-eval 0.6.6, glm_winrate.py, `length_controlled_v1`).

It is a logistic regression of the preferences on the difference in length, the instruction's difficulty and the model,
with an L1 penalty, on the model's annotations and, with less weight, on those of the calibration. The rate is the mean
of its predictions for answers that are as long as the reference's.

`length_control` fits it as the package does, with scikit-learn and a penalty chosen by cross-validation. The package is
no library: on import it reads a `.env` file into the environment and loads clients of several APIs, and its regression
changes settings of the whole process.

`pseudo_values` needs a fit without each item, and scikit-learn is too slow for that. So `rates` fits many resamples at
once, with the penalty that was chosen: a thousand fits take about a second. On the same data both give the same rate,
to some 0.002 points.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CALIBRATION_WEIGHT = 0.1
"""Weight of an annotation of the calibration: `regularize_to_baseline_lambda`, half of it for each of two models."""
FOLDS, SEED = 5, 123
STEPS, SWEEPS = 50, 60
"""Maximum number of Newton steps, and of sweeps over the three weights in each."""
CLOSE = 1e-8
_one_at_a_time = threading.Lock()


class NotComputableError(ValueError):
    """There is no length-controlled win rate of these annotations; the text says why."""


class LengthControl(NamedTuple):
    """A fit of the regression."""

    rate: float
    """The length-controlled win rate, in percent."""
    strength: float
    """The inverse of the penalty's weight (`C`), as cross-validation chose it."""


class Annotated(NamedTuple):
    """A model's annotations and the calibration, as the regression sees them."""

    lengths: Array
    """Reference's minus model's, in characters."""
    difficulty: Array
    preferred: Array
    """Probability that the model's output is better."""
    calibration: Array
    """Rows of length (standardised, squashed), difficulty and preference."""


def length_control(
    places: Sequence[int], lengths: Sequence[float], preferred: Sequence[float], calibration: Path
) -> tuple[LengthControl, Annotated]:
    """Returns the fit to a model's annotations, and the data to repeat it.

    Args:
        places: Positions of the instructions among all, by which the calibration tells their difficulty.
        lengths: Reference's minus model's, in characters.
        preferred: Probability that the model's output is better.
        calibration: The package's `df_gamed.csv`.

    Raises:
        NotComputableError: the regression cannot be fitted to these annotations.
    """
    if not calibration.is_file():
        raise NotComputableError(f"the data has no {calibration.name}, which the length-controlled win rate needs")
    if len(set(lengths)) < 2:
        raise NotComputableError(
            "all answers differ from the reference's by the same length, so length has no effect to fit"
        )
    import pandas as pd

    try:
        gamed = pd.read_csv(calibration)
        difficulty = gamed.drop_duplicates("index")["instruction_difficulty"]
        data = Annotated(
            np.array(lengths, dtype=float),
            difficulty.loc[list(places)].to_numpy(dtype=float),
            np.array(preferred, dtype=float),
            np.column_stack([np.tanh(gamed["std_delta_len"]), gamed["instruction_difficulty"], gamed["preference"]]),
        )
        return _fit(data), data
    except (ValueError, KeyError, ArithmeticError) as error:
        raise NotComputableError(f"the length-controlled win rate cannot be fitted: {error}") from error


def _fit(data: Annotated) -> LengthControl:
    from sklearn import config_context  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegressionCV  # type: ignore[import-untyped]
    from sklearn.metrics import make_scorer  # type: ignore[import-untyped]
    from sklearn.model_selection import GroupKFold  # type: ignore[import-untyped]

    gamed_length, gamed_difficulty, gamed_preferred = data.calibration.T
    own = np.column_stack(
        [np.tanh(data.lengths / data.lengths.std(ddof=1)), data.difficulty, np.ones(len(data.lengths))]
    )
    rows = np.vstack([np.column_stack([gamed_length, gamed_difficulty, np.zeros(len(gamed_length))]), own])
    likely, count = np.concatenate([gamed_preferred, data.preferred]), len(rows)
    # Each row counts twice, as a win and as a loss, in proportion to the preference.
    shares, weight = np.concatenate([likely, 1 - likely]), np.tile(np.where(rows[:, 2], 1, CALIBRATION_WEIGHT), 2)
    # liblinear draws from one generator for the whole process; the setting of scikit-learn is the thread's own.
    with _one_at_a_time, config_context(enable_metadata_routing=True):
        scorer = make_scorer(_log_loss, response_method="predict_proba", greater_is_better=False)
        model = LogisticRegressionCV(
            cv=GroupKFold(FOLDS),
            scoring=scorer.set_score_request(likely=True, weight=True),
            random_state=SEED,
            l1_ratios=(1.0,),
            use_legacy_attributes=False,
            solver="liblinear",
            fit_intercept=False,
        ).set_fit_request(sample_weight=True)
        model.fit(
            np.vstack([rows, rows]),
            np.repeat([1, 0], count),
            sample_weight=shares * weight,
            groups=np.tile(np.arange(count), 2),
            likely=shares,
            weight=weight,
        )
    own[:, 0] = 0
    return LengthControl(float(100 * model.predict_proba(own)[:, 1].mean()), float(model.C_))


def _log_loss(wins: Array, predicted: Array, likely: Array, weight: Array) -> float:
    """Returns the loss of predicted wins; `likely` is how likely the outcome of each row was, a win or a loss."""
    likely, predicted = np.where(wins == 1, likely, 1 - likely), np.clip(predicted, 1e-15, 1 - 1e-15)
    return -float(np.mean(weight * (likely * np.log(predicted) + (1 - likely) * np.log(1 - predicted))))


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
