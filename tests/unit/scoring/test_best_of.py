"""Tests the best of several submissions: as it is taken, and without the bias of the choice."""

import numpy as np
import pytest

from a2rl.scoring.paired import best_of


def test_a_single_submission_has_the_same_gain_either_way() -> None:
    found = best_of([0, 0, 1, 1], [[1, 0, 1, 1]])
    assert found.as_taken == pytest.approx(25)
    assert found.cross_fitted == pytest.approx(25)
    assert found.chosen_among == 1


def test_the_earliest_of_equals_is_chosen() -> None:
    assert best_of([0, 1], [[1, 1], [1, 1]]).as_taken == pytest.approx(50)


def test_one_item_cannot_be_halved() -> None:
    assert best_of([0], [[1], [0]]).cross_fitted is None


def test_without_a_true_gain_the_cross_fitted_gain_is_about_zero() -> None:
    """The one that was taken is not."""
    rng, taken, fitted = np.random.default_rng(0), [], []
    for _ in range(60):
        values = (rng.random((21, 100)) < 0.5).astype(float)
        found = best_of(values[0].tolist(), values[1:].tolist())
        taken.append(found.as_taken)
        fitted.append(found.cross_fitted)
    assert np.mean(taken) > 5
    assert abs(np.mean(np.array(fitted, dtype=float))) < 2


def test_a_submission_that_is_truly_better_keeps_its_gain() -> None:
    rng = np.random.default_rng(1)
    base = (rng.random(400) < 0.2).astype(float)
    tries = [(rng.random(400) < chance).astype(float).tolist() for chance in (0.2, 0.7, 0.2)]
    found = best_of(base.tolist(), tries)
    assert found.cross_fitted == pytest.approx(found.as_taken, abs=1e-9)
