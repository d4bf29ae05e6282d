"""Tests intervals of means: the textbook's for right and wrong answers, and honest ones for graded values."""

import numpy as np
import pytest

from a2rl.scoring.means import effective_items, mean_interval, wilson_interval


def test_right_or_wrong_answers_count_once_each() -> None:
    assert effective_items([1.0, 0.0, 1.0, 0.0]) == 4
    assert mean_interval([1.0] * 30 + [0.0] * 70) == wilson_interval(0.3, 100)


def test_the_interval_is_wilsons() -> None:
    from scipy.stats import binomtest

    for right, total in ((0, 41), (3, 82), (50, 100), (134, 134)):
        known = binomtest(right, total).proportion_ci(method="wilson")
        assert wilson_interval(right / total, total) == pytest.approx((100 * known.low, 100 * known.high), abs=1e-6)


def test_graded_values_that_vary_less_count_more() -> None:
    values = [0.4, 0.5, 0.6, 0.5] * 25
    assert effective_items(values) > 200
    low, high = mean_interval(values)
    assert low < 50 < high
    assert high - low < mean_interval([1.0, 0.0] * 50).high - mean_interval([1.0, 0.0] * 50).low


def test_one_value_among_zeros_says_little_about_the_spread() -> None:
    """Without the prior, one item of 0.05 among 40 zeros would exclude a mean of 1%."""
    assert mean_interval([0.05] + [0.0] * 40).high > 1


@pytest.mark.parametrize("values", [[0.3], [0.0] * 50, [1.0] * 50, [0.5] * 50])
def test_equal_values_have_an_interval_inside_the_scale(values: list[float]) -> None:
    """It has some length."""
    low, high = mean_interval(values)
    assert 0 <= low < high <= 100
    assert low <= 100 * values[0] <= high


def test_graded_values_are_covered_as_often_as_claimed() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(500):
        values = np.where(rng.random(100) < 0.98, 0.0, rng.random(100))
        low, high = mean_interval(values.tolist())
        hits += low <= 1.0 <= high
    assert 0.92 <= hits / 500 <= 0.99
