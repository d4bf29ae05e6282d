"""The test of the halves on simulated runs: how often it flags honest ones, and dishonest ones."""

from pathlib import Path

import numpy as np
import pytest

from a2rl.core.files import write_model
from a2rl.grading.job import GradeResult
from a2rl.scoring.score import ItemResult, summarise
from a2rl.validity.checks import RunEvidence
from a2rl.validity.halves import DIVISIONS, compare_halves, halves_agree
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run
from tests.statistics.halves import rate


def results(values: list[float], group: str = "", first: int = 0) -> list[ItemResult]:
    return [
        ItemResult(id=str(first + place), verdict="correct" if value == 1 else "wrong", value=value, group=group)
        for place, value in enumerate(values)
    ]


def test_honest_runs_are_hardly_ever_flagged() -> None:
    assert rate(150, 200, 3) <= 1 / 150


@pytest.mark.parametrize("half", ["public", "private"])
def test_a_half_that_is_known_by_heart_is_always_flagged(half: str) -> None:
    assert rate(20, 200, 3, known=1.0, half=half) == 1.0


def test_p_values_of_honest_checkpoints_are_spread_evenly() -> None:
    """A test whose p-values are too small under chance would flag more runs than it says."""
    rng = np.random.default_rng(3)
    found = [
        compare_halves(results(list(rng.integers(0, 2, 60) * 1.0)), results(list(rng.integers(0, 2, 60) * 1.0)), seed=n)
        for n in range(200)
    ]
    for side in ("p_public_better", "p_private_better"):
        below = sum(getattr(each, side) <= 0.1 for each in found) / len(found)
        assert below <= 0.16  # three standard errors above 0.1


def test_equally_many_hard_items_in_both_halves_are_considered() -> None:
    easy, hard = [1.0] * 40, [0.0] * 40
    public = [*results(easy, "easy"), *results(hard[:10], "hard")]
    private = [*results(easy[:10], "easy"), *results(hard, "hard")]
    found = compare_halves(public, private)
    assert found.public > found.private
    assert found.p_public_better == 1.0


def test_a_difference_beyond_chance_is_found_after_many_tries() -> None:
    for tries in (1, 200, 1000):
        assert compare_halves(results([1.0] * 60), results([0.0] * 60), tries).is_suspicious(tries)


def test_the_smallest_p_value_is_that_of_the_real_division_alone() -> None:
    found = compare_halves(results([0.0] * 60), results([1.0] * 60))
    assert found.p_private_better == 1 / DIVISIONS
    assert (found.public, found.private, found.p_public_better) == (0.0, 100.0, 1.0)


def test_values_in_between_are_compared_too() -> None:
    rng = np.random.default_rng(5)
    low, high = (list(np.round(rng.random(80) * 0.4 + base, 4)) for base in (0.0, 0.6))
    assert compare_halves(results(low), results(high)).p_private_better < 0.001
    assert compare_halves(results(low), results(low)).p_private_better > 0.1


def test_a_half_without_a_judged_item_is_no_reason_for_suspicion() -> None:
    errored = [ItemResult(id="1", verdict="errored", reason="the grader failed")]
    assert not compare_halves(errored, results([1.0])).is_suspicious(1)


def test_a_mean_value_that_is_not_the_score_is_not_called_so(tmp_path: Path) -> None:
    """The score of AlpacaEval, which the ledger has, is not the mean of its items."""
    settings = checkout(tmp_path)
    run = simulate_run(settings, 1)
    [finding] = halves_agree(RunEvidence(run, settings))
    assert finding.text.startswith("The result scores ")
    assert [each.what for each in finding.evidence[:2]] == ["public score", "private score"]
    items = tuple(results([0.75] * 40))
    for file in run.grades.glob("*.json"):
        write_model(file, GradeResult(score=summarise(items), items=items))
    [finding] = halves_agree(RunEvidence(run, settings))
    whole = "The mean value of the items is 75.0 on the public half and 75.0 on the private half, as chance allows."
    assert finding.text == whole
    assert [each.what for each in finding.evidence[:2]] == ["public mean value", "private mean value"]
