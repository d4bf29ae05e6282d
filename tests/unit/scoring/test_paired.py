"""Tests paired differences: exact with few items, consistent with the interval, and corrected for choosing the best."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from a2rl.run.records import verdict_of
from a2rl.scoring.paired import (
    Improvement,
    compare,
    corrected,
    difference_interval,
    flip_test,
    sign_test,
    tango_interval,
)
from a2rl.scoring.score import ItemResult, summarise


def results(values: Sequence[float | None]) -> list[ItemResult]:
    """Returns one result for each value; None means errored."""
    return [
        ItemResult(id=str(place), verdict="errored")
        if value is None
        else ItemResult(id=str(place), verdict="correct" if value > 0.5 else "wrong", value=value)
        for place, value in enumerate(values)
    ]


def binary(gains: int, losses: int, items: int) -> list[float]:
    return [1.0] * gains + [-1.0] * losses + [0.0] * (items - gains - losses)


def verdict(differences: Sequence[float], level: float = 0.95) -> str:
    improvement = Improvement(100 * sum(differences) / len(differences), difference_interval(differences, level))
    return verdict_of(summarise(results([1.0])), improvement)


def test_an_improvement_is_paired_over_items_graded_for_both() -> None:
    after = results([0.0, 1.0, 1.0, 0.0, 1.0])
    stranger = ItemResult(id="77", verdict="correct", value=1.0)
    improvement = compare(results([1.0, 0.0, 0.0, 0.0, 1.0]), [*after[::-1], stranger])
    assert improvement is not None
    assert improvement.points == pytest.approx(100 * (2 - 1) / 5)
    assert improvement.ci.low < improvement.points < improvement.ci.high


def test_there_is_no_improvement_without_common_items() -> None:
    assert compare([], results([1.0])) is None
    assert compare(results([None]), results([1.0])) is None


@pytest.mark.parametrize("differing", range(1, 26))
def test_better_comes_by_chance_in_at_most_a_fortieth_of_cases(differing: int) -> None:
    """Counts all outcomes of this many items, however few, which are equally likely without a real change."""
    by_chance = sum(
        math.comb(differing, gains) / 2**differing
        for gains in range(differing + 1)
        if verdict(binary(gains, differing - gains, 67)) == "improved"
    )
    assert by_chance <= 0.025


@pytest.mark.parametrize("differing", [4, 5])
def test_a_handful_of_items_is_no_proof_even_if_all_got_better(differing: int) -> None:
    assert verdict(binary(differing, 0, 41)) == "inconclusive"
    assert verdict(binary(0, differing, 41)) == "inconclusive"


def test_six_items_out_of_six_are_proof() -> None:
    assert verdict(binary(6, 0, 41)) == "improved"
    assert verdict(binary(0, 6, 41)) == "worse"


@pytest.mark.parametrize("level", [0.95, corrected(0.95, 20)])
def test_the_interval_and_the_exact_test_never_contradict(level: float) -> None:
    for items, gains in itertools.product((30, 100), range(16)):
        for losses in range(14):
            interval = difference_interval(binary(gains, losses, items), level)
            points = 100 * (gains - losses) / items
            assert interval.low <= points <= interval.high
            assert (interval.low <= 0 <= interval.high) == (sign_test(gains, losses) > 1 - level)


@pytest.mark.parametrize(
    ("gains", "losses", "items", "low", "high"),
    [(1, 7, 21, -0.517, -0.026), (0, 0, 41, -0.0857, 0.0857), (41, 0, 41, 0.8287, 1.0), (0, 41, 41, -1.0, -0.8287)],
)
def test_the_interval_is_tangos(gains: int, losses: int, items: int, low: float, high: float) -> None:
    """The first is published (Fagerland, Lydersen and Laake 2014, BMC Medical Research Methodology: airway data); the
    others have the closed form z^2 / (n + z^2)."""
    assert tango_interval(gains, losses, items, 0.95) == pytest.approx((100 * low, 100 * high), abs=0.05)


def test_the_same_answers_are_no_improvement() -> None:
    """The interval says what could have been missed."""
    improvement = compare(results([1.0, 0.0] * 20), results([1.0, 0.0] * 20))
    assert improvement is not None
    assert improvement.points == 0
    assert improvement.ci.low < -5 < 5 < improvement.ci.high


@pytest.mark.parametrize("items", [41, 67])
def test_the_interval_covers_a_gain_without_losses(items: int) -> None:
    """In these cases, the bootstrap covers only 85 to 87%."""
    rng, covered = np.random.default_rng(0), 0
    for gains in rng.binomial(items, 0.05, size=1000):
        interval = difference_interval(binary(int(gains), 0, items), 0.95)
        covered += interval.low <= 5 <= interval.high
    assert covered >= 950


def test_flipping_signs_is_exact_with_few_items() -> None:
    assert flip_test([0.2, 0.5, 0.1, 0.9], 0.95) == pytest.approx(2 / 16)
    assert flip_test([0.2, -0.5, 0.0, 0.0], 0.95) == 1.0
    assert flip_test([0.0] * 9, 0.95) == 1.0
    assert flip_test(binary(9, 2, 30), 0.95) == pytest.approx(sign_test(9, 2))


def test_flipping_signs_at_random_is_never_surer_than_it_may_be() -> None:
    certain = [0.3] * 60
    assert 0 < flip_test(certain, 0.95) < 0.001
    assert flip_test(certain, corrected(0.95, 50)) < 0.05 / 50
    assert flip_test(certain, 0.95) == flip_test(certain, 0.95)


def graded(rng: np.random.Generator, items: int, changed: float, shift: float) -> list[float]:
    """Returns differences of values between 0 and 1, of which a share changes."""
    before = np.clip(rng.normal(0.4, 0.3, items), 0, 1)
    after = np.clip(np.where(rng.random(items) < changed, rng.normal(0.4 + shift, 0.3, items), before), 0, 1)
    return (after - before).tolist()  # type: ignore[no-any-return]


@pytest.mark.heavy
@pytest.mark.parametrize(("items", "changed"), [(41, 0.1), (41, 1.0), (100, 0.05), (134, 0.5)])
def test_graded_values_without_a_gain_are_seldom_called_better(items: int, changed: float) -> None:
    rng = np.random.default_rng(0)
    called = sum(verdict(graded(rng, items, changed, 0.0)) == "improved" for _ in range(200))
    assert called <= 0.025 * 200 + 2 * math.sqrt(200 * 0.025 * 0.975)


def test_graded_values_that_got_better_are_called_better() -> None:
    rng = np.random.default_rng(0)
    assert sum(verdict(graded(rng, 100, 1.0, 0.2)) == "improved" for _ in range(50)) >= 45


def test_an_errored_item_counts_as_its_best_and_as_its_worst() -> None:
    before, after = [0.0] * 40, [1.0] * 6 + [0.0] * 34
    judged = compare(results(before), results(after))
    one_less = compare(results(before), results([*after[:-1], None]))
    assert judged is not None
    assert one_less is not None
    assert judged.ci.low > 0
    worst, best = (difference_interval(binary(6 + up, 0, 40), 0.95) for up in (0, 1))
    assert one_less.points == pytest.approx(100 * 6 / 39)
    assert (one_less.ci.low, one_less.ci.high) == (pytest.approx(min(worst.low, judged.ci.low), abs=0.5), best.high)
    lost = compare(results([1.0] * 40), results([1.0] * 39 + [None]))
    assert lost is not None
    assert lost.ci.low == difference_interval(binary(0, 1, 40), 0.95).low


def test_six_gains_beside_an_errored_item_are_no_proof() -> None:
    """The item may have been lost."""
    improvement = compare(results([0.0] * 40 + [1.0]), results([1.0] * 6 + [0.0] * 34 + [None]))
    assert improvement is not None
    assert improvement.ci.low <= 0 < improvement.points


def test_the_level_is_shared_among_all_that_was_tried() -> None:
    assert corrected(0.95, 1) == corrected(0.95, 0) == 0.95
    assert corrected(0.95, 20) == pytest.approx(1 - 0.0025)


@pytest.mark.parametrize("tried", [1, 5, 20, 50])
@pytest.mark.parametrize("items", [100, 134])
def test_the_best_of_many_without_a_gain_is_seldom_called_better(tried: int, items: int) -> None:
    """Simulates the `paper` protocol without any real change: 5% of the items change by chance."""
    rng, runs, level = np.random.default_rng(tried), 1000, corrected(0.95, tried)
    flips = rng.random((runs, tried, items)) < 0.15
    signs = np.where(rng.random((runs, tried, items)) < 0.5, 1.0, -1.0)
    differences = flips * signs
    best = differences[np.arange(runs), differences.sum(axis=2).argmax(axis=1)]
    called = sum(verdict(each.tolist(), level) == "improved" for each in best)
    assert called <= 0.025 * runs + 2 * math.sqrt(runs * 0.025 * 0.975)
