"""Tests scores: the four counts add up, failures are not scores, and intervals match the textbook."""

import random
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from a2rl.scoring.means import mean_interval
from a2rl.scoring.score import Headline, ItemResult, TaskScore, Verdict, errors_tolerated, summarise


def items(**counts: int) -> list[ItemResult]:
    verdicts: list[Verdict] = []
    for verdict in ("correct", "wrong", "truncated", "errored"):
        verdicts += [verdict] * counts.get(verdict, 0)
    return [
        ItemResult(id=str(place), verdict=verdict, value=float(verdict == "correct"), reason="it broke", tokens=3)
        for place, verdict in enumerate(verdicts)
    ]


def test_the_score_is_the_share_of_right_answers_in_percent() -> None:
    score = summarise(items(correct=3, wrong=4, truncated=1), seconds=1.23456)
    assert score.score == pytest.approx(37.5)
    assert (score.correct, score.wrong, score.truncated, score.errored, score.total) == (3, 4, 1, 0, 8)
    assert (score.tokens, score.seconds) == (24, 1.235)


def test_the_four_counts_add_up_whatever_the_verdicts() -> None:
    rng = random.Random(0)
    for _ in range(50):
        counts = {name: rng.randint(0, 5) for name in ("correct", "wrong", "truncated", "errored")}
        score = summarise(items(**counts))
        assert score.correct + score.wrong + score.truncated + score.errored == score.total == sum(counts.values())


def test_no_items_have_no_score() -> None:
    score = summarise([])
    assert score.score is None
    assert score.ci is None
    assert "nothing to grade" in score.reason


def test_too_many_errored_items_leave_no_score_but_a_reason() -> None:
    score = summarise(items(correct=95, errored=3))
    assert score.score is None
    assert score.reason == "3 of 98 items could not be judged; item 95: it broke"


@pytest.mark.parametrize(("total", "tolerated"), [(1, 0), (9, 0), (10, 1), (49, 1), (99, 1), (100, 2), (805, 16)])
def test_one_item_of_ten_may_be_errored_and_two_of_a_hundred(total: int, tolerated: int) -> None:
    assert errors_tolerated(total) == tolerated
    assert summarise(items(correct=total - tolerated, errored=tolerated)).score == 100
    assert summarise(items(correct=total - tolerated - 1, errored=tolerated + 1)).score is None


def test_the_interval_covers_whatever_an_errored_item_was() -> None:
    score = summarise(items(correct=20, wrong=20, errored=1))
    worst, best = (mean_interval([1.0] * (20 + right) + [0.0] * (21 - right)) for right in (0, 1))
    assert score.score == 50
    assert score.ci == (worst.low, best.high)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, -0.1, 1.1])
def test_no_item_has_a_value_that_is_no_share(value: float) -> None:
    with pytest.raises(ValidationError, match="value"):
        ItemResult(id="1", verdict="correct", value=value)
    with pytest.raises(ValidationError, match="measures"):
        ItemResult(id="1", verdict="correct", measures={"length": float("nan")})


def test_a_few_errored_items_are_left_out_of_the_mean() -> None:
    score = summarise(items(correct=49, wrong=49, errored=2))
    assert score.score == 50.0
    assert score.errored == 2


def test_all_items_errored_is_no_score_and_not_a_zero() -> None:
    assert summarise(items(errored=1)).score is None


def test_a_truncated_answer_counts_as_not_right() -> None:
    assert summarise(items(correct=1, truncated=1)).score == 50.0


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [(0, 10, 0.0, 27.753), (10, 10, 72.247, 100.0), (5, 10, 23.659, 76.341), (50, 100, 40.383, 59.617)],
)
def test_the_interval_of_yes_no_values_is_wilsons(right: int, total: int, low: float, high: float) -> None:
    interval = mean_interval([1.0] * right + [0.0] * (total - right))
    assert interval == pytest.approx((low, high), abs=1e-3)


def test_the_standard_error_of_gsm8k_is_the_published_one() -> None:
    interval = mean_interval([1.0, 0.0] * 659 + [1.0])
    assert (interval.high - interval.low) / 2 / 1.96 == pytest.approx(1.4, abs=0.05)  # FACTS: 1.4 points at p = 0.5


def test_the_interval_of_graded_values_holds_the_mean() -> None:
    values = [0.1, 0.5, 0.9, 1.0, 0.3, 0.7] * 5
    interval = mean_interval(values)
    assert interval.low < 100 * sum(values) / len(values) < interval.high


def test_no_score_prints_its_reason_and_a_score_its_interval() -> None:
    assert str(summarise([])) == "no score (there was nothing to grade)"
    assert str(summarise(items(correct=5, wrong=5))) == "50.0 [23.7, 76.3]"


def test_a_score_cannot_be_changed_or_given_other_fields() -> None:
    score = summarise(items(correct=1))
    with pytest.raises(ValidationError):
        score.score = 100.0
    with pytest.raises(ValidationError, match="bonus"):
        TaskScore.model_validate(score.model_dump() | {"bonus": 1})


def test_a_task_may_be_scored_by_another_figure_than_the_mean() -> None:
    def highest(found: Sequence[ItemResult]) -> Headline:
        return Headline(100 * max(item.value for item in found), None, "", {"judged": len(found)})

    score = summarise(items(correct=1, wrong=199, errored=1), headline=highest)
    assert (score.score, score.total, score.measures) == (100, 201, {"judged": 200})
    assert summarise(items(errored=3), headline=highest).score is None
