"""Tests the gain of the best of several submissions without the bias of the choice."""

import numpy as np
import pytest

from a2rl.scoring.paired import cross_fitted


def taken(base: list[float], tries: list[list[float]]) -> float:
    """The gain of the best submission on the items by which it was chosen."""
    return 100 * float(max(np.mean(each) for each in tries) - np.mean(base))


def test_a_single_submission_has_the_same_gain_either_way() -> None:
    assert cross_fitted([0, 0, 1, 1], [[1, 0, 1, 1]]) == taken([0, 0, 1, 1], [[1, 0, 1, 1]]) == pytest.approx(25)


def test_the_earliest_of_equals_is_chosen() -> None:
    assert cross_fitted([0, 1], [[1, 1], [1, 1]]) == pytest.approx(50)


def test_one_item_cannot_be_halved() -> None:
    assert cross_fitted([0], [[1], [0]]) is None


def test_without_a_true_gain_the_cross_fitted_gain_is_about_zero() -> None:
    """The one that was taken is not."""
    rng, biased, fitted = np.random.default_rng(0), [], []
    for _ in range(60):
        values = (rng.random((21, 100)) < 0.5).astype(float).tolist()
        biased.append(taken(values[0], values[1:]))
        fitted.append(cross_fitted(values[0], values[1:]))
    assert np.mean(biased) > 5
    assert abs(np.mean(np.array(fitted, dtype=float))) < 2


def test_a_submission_that_is_truly_better_keeps_its_gain() -> None:
    rng = np.random.default_rng(1)
    base = (rng.random(400) < 0.2).astype(float).tolist()
    tries = [(rng.random(400) < chance).astype(float).tolist() for chance in (0.2, 0.7, 0.2)]
    assert cross_fitted(base, tries) == pytest.approx(taken(base, tries), abs=1e-9)
