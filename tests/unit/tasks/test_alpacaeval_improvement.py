"""Tests AlpacaEval's improvement: length-controlled like the score, and rarely a false alarm."""

import math
import time
from pathlib import Path

import numpy as np
import pytest

from a2rl.core.files import write_jsonl
from a2rl.grading.job import score_items
from a2rl.scoring.paired import LEVEL, Improvement, compare, corrected, difference_interval, mean_difference
from a2rl.scoring.score import ItemResult, errors_tolerated
from tasks.alpacaeval import grade as grader
from tasks.alpacaeval.length_control import pseudo_values, rates
from tests.statistics.alpacaeval import Judged, judged


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judged(tmp_path_factory.mktemp("judged") / "hidden", 100)


def improvement(of: Judged, before: list[ItemResult], after: list[ItemResult], level: float = LEVEL) -> Improvement:
    found = grader.improvement(before, after, level, of.hidden)
    assert found is not None
    return found


def test_the_improvement_is_the_difference_of_the_scores(hundred: Judged) -> None:
    rng = np.random.default_rng(0)
    before, after = hundred.results(rng, -2, 0), hundred.results(rng, 0, 300)
    scores = [score_items("alpacaeval", hundred.hidden, items).score for items in (before, after)]
    assert scores[0] is not None
    assert scores[1] is not None
    found = improvement(hundred, before, after)
    assert found.points == pytest.approx(scores[1] - scores[0], abs=1e-9)
    assert 0 < found.ci.low < found.points < found.ci.high
    plain = mean_difference(before, after)
    assert plain is not None
    assert abs(found.points - plain.points) > 1


def test_longer_answers_that_are_no_better_are_no_improvement(hundred: Judged) -> None:
    """They are a plain gain."""
    rng = np.random.default_rng(1)
    before, after = hundred.results(rng, -1, 0), hundred.results(rng, -1, 1200)
    plain = mean_difference(before, after)
    assert plain is not None
    assert plain.ci.low > 0
    assert improvement(hundred, before, after).ci.low <= 0


@pytest.mark.heavy
@pytest.mark.parametrize("longer", [0.0, 1200.0])
def test_answers_that_are_no_better_are_seldom_called_better(hundred: Judged, longer: float) -> None:
    assert false_alarms(hundred, longer, 1, 10) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("longer", "tried", "runs"), [(0.0, 1, 300), (1200.0, 1, 300), (0.0, 5, 200), (0.0, 20, 60)])
def test_in_many_runs_equal_answers_are_seldom_called_better(
    hundred: Judged, longer: float, tried: int, runs: int
) -> None:
    assert false_alarms(hundred, longer, tried, runs) <= 0.025 * runs + 2 * math.sqrt(runs * 0.025 * 0.975)


def false_alarms(of: Judged, longer: float, tried: int, runs: int) -> int:
    """Counts the runs called better although all models have the same skill; the best of those tried counts."""
    rng, level, called = np.random.default_rng(int(longer) + tried), corrected(LEVEL, tried), 0
    for _ in range(runs):
        before = of.results(rng, -1, 0)
        after = [of.results(rng, -1, longer) for _ in range(tried)]
        best = (
            max(after, key=lambda items: score_items("alpacaeval", of.hidden, items).score or 0)
            if tried > 1
            else after[0]
        )
        called += improvement(of, before, best, level).ci.low > 0
    return called


@pytest.mark.heavy
def test_a_true_gain_is_found(hundred: Judged) -> None:
    rng = np.random.default_rng(3)
    found = [improvement(hundred, hundred.results(rng, -1, 0), hundred.results(rng, 0.5, 0)) for _ in range(10)]
    assert sum(each.ci.low > 0 for each in found) >= 8


def test_the_same_answers_are_no_improvement(hundred: Judged) -> None:
    items = hundred.results(np.random.default_rng(4), -1, 0)
    found = improvement(hundred, items, items)
    assert found.points == 0
    assert -10 < found.ci.low < 0 < found.ci.high < 10


def test_the_refits_give_the_packages_rate_and_bootstrap_spread(hundred: Judged) -> None:
    items = hundred.results(np.random.default_rng(5), -0.5, 200)
    (rate, strength), data = grader._controlled(items, hundred.hidden)
    own, _ = rates(data, np.ones((1, 100)), strength)
    assert 100 * own[0] == pytest.approx(rate, abs=0.01)
    times = np.random.default_rng(0).multinomial(100, [0.01] * 100, size=500).astype(float)
    resampled, _ = rates(data, times, strength)
    spread = pseudo_values(data, strength).std(ddof=1) / 10
    assert spread == pytest.approx(resampled.std(ddof=1), rel=0.2)


@pytest.mark.heavy
def test_eight_hundred_items_take_seconds(tmp_path: Path) -> None:
    many, rng = judged(tmp_path / "many", 805), np.random.default_rng(0)
    before, after = many.results(rng, -1, 0), many.results(rng, -1, 500)
    started = time.thread_time()  # only of this thread, because the machine may be busy
    improvement(many, before, after)
    assert time.thread_time() - started < 20


@pytest.mark.heavy
def test_an_item_without_a_judgement_makes_the_interval_longer(hundred: Judged) -> None:
    rng = np.random.default_rng(6)
    before, after = hundred.results(rng, -1, 0), hundred.results(rng, -1, 0)
    errored = [ItemResult(id=each.id, verdict="errored", reason="no completion was given") for each in after[:2]]
    assert len(errored) == errors_tolerated(100)

    def difference(old: object, new: object, level: float) -> Improvement | None:
        return grader.improvement(old, new, level, hundred.hidden)  # type: ignore[arg-type]

    whole = compare(before[2:], after[2:], LEVEL, difference)
    found = compare(before, errored + after[2:], LEVEL, difference)
    assert whole is not None
    assert found is not None
    assert found.points == whole.points
    assert found.ci.low <= whole.ci.low
    assert found.ci.high > whole.ci.high
    score = score_items("alpacaeval", hundred.hidden, errored + after[2:])
    assert score.score is not None
    assert score.ci is not None


def test_without_calibration_there_is_no_improvement(hundred: Judged, tmp_path: Path) -> None:
    items = hundred.results(np.random.default_rng(7), -1, 0)
    write_jsonl(tmp_path / "eval.jsonl", [{"instruction": "Do.", "dataset": "", "reference": "x"}] * 100)
    assert grader.improvement(items, items, LEVEL, tmp_path) is None


def test_an_interval_of_zeros_means_items_that_do_not_differ() -> None:
    assert difference_interval([0.0] * 100, LEVEL).high == pytest.approx(100 * 3.8415 / 103.8415, abs=0.01)
