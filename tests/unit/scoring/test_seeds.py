"""Tests gains over several runs: both runs and items are samples, and failed runs count as no gain."""

import numpy as np
import pytest

from a2rl.scoring.means import Interval
from a2rl.scoring.paired import difference_interval
from a2rl.scoring.seeds import Table, compare_agents, expected_best, holm, interquartile_mean, mean_gain


def table(runs: int, items: int, gains: float, spread: float, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    chance = np.clip(gains + spread * rng.standard_normal((runs, 1)), 0, 1)
    rows: Table = (rng.random((runs, items)) < chance).astype(float).tolist()
    return rows


def test_one_run_has_the_interval_of_its_items() -> None:
    [row] = table(1, 80, 0.3, 0)
    found = mean_gain([row])
    assert found.ci == difference_interval(list(row), 0.95)
    assert found.points == pytest.approx(100 * sum(row) / 80)


def test_runs_that_differ_make_the_interval_longer() -> None:
    """This holds however many items there are."""
    alike, different = mean_gain(table(4, 2_000, 0.3, 0)), mean_gain(table(4, 2_000, 0.3, 0.2))
    assert alike.ci.high - alike.ci.low < 6
    assert different.ci.high - different.ci.low > 20


def test_more_runs_make_the_interval_shorter() -> None:
    widths = [mean_gain(table(runs, 1_000, 0.3, 0.1)).ci for runs in (3, 30)]
    assert widths[0].high - widths[0].low > 1.5 * (widths[1].high - widths[1].low)


def test_runs_without_a_result_are_no_gain_and_leave_some_doubt() -> None:
    found = mean_gain([[0.0] * 50] * 3)
    assert found.points == 0
    assert found.ci.low < 0 < found.ci.high


@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_runs_that_agree_on_all_items_say_nothing_of_other_items(gain: float) -> None:
    one, three = (mean_gain([[gain] * 70] * runs).ci for runs in (1, 3))
    assert three.high - three.low > 0.75 * (one.high - one.low)
    assert three.low <= 100 * gain <= three.high


@pytest.mark.parametrize("wrong", [[], [[]], [[0.0], [0.0, 1.0]]])
def test_a_table_without_cells_or_with_gaps_is_refused(wrong: Table) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        mean_gain(wrong)


def test_two_agents_are_compared_over_runs_and_items() -> None:
    weak, strong, alike = (table(5, 200, gains, 0.02, seed) for seed, gains in enumerate((0.2, 0.6, 0.2)))
    found = compare_agents(weak, strong)
    assert found.ci.low > 20
    assert found.p < 0.01
    found = compare_agents(weak, alike)
    assert found.ci.low < 0 < found.ci.high


def test_the_difference_of_two_agents_stays_within_what_can_be() -> None:
    assert compare_agents([[0.0]], [[1.0]]).ci == Interval(-200, 200)


def test_agents_graded_on_different_items_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different items"):
        compare_agents([[0.0, 1.0]], [[0.0, 1.0, 1.0]])


def test_holms_correction_matches_a_worked_example() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean([0, 1, 2, 100]) == pytest.approx(1.5)
    assert interquartile_mean([7]) == 7
    assert interquartile_mean([0, 10, 20, 30, 40, 50]) == pytest.approx((0.5 * 10 + 20 + 30 + 0.5 * 40) / 3)


def test_the_expected_best_is_the_mean_over_all_choices_of_runs() -> None:
    gains = [1.0, 5.0, 2.0]
    assert expected_best(gains, 1) == pytest.approx(8 / 3)
    assert expected_best(gains, 2) == pytest.approx((5 + 2 + 5) / 3)
    assert expected_best(gains, 3) == 5
    assert expected_best(gains, 4) is None
    assert expected_best([], 0) is None
