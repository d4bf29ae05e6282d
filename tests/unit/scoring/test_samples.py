"""Tests several answers to each item: their mean, and that its interval covers both sources of chance."""

from collections.abc import Sequence

import numpy as np
import pytest

from a2rl.scoring.means import mean_interval
from a2rl.scoring.paired import compare
from a2rl.scoring.score import ItemResult, Verdict, mean_of_samples, summarise


def item(value: float, verdict: Verdict | None = None, **more: float) -> ItemResult:
    chosen: Verdict = verdict or ("correct" if value else "wrong")
    return ItemResult(id="a", verdict=chosen, value=value, tokens=3, measures=more)


def mean(*samples: ItemResult) -> ItemResult:
    [found] = mean_of_samples([[sample] for sample in samples])
    return found


def test_one_answer_to_each_item_is_left_as_it_is() -> None:
    items = [item(1.0), item(0.0)]
    assert mean_of_samples([items]) == items


def test_the_value_of_an_item_is_the_mean_of_its_answers() -> None:
    found = mean(item(1.0, steps=2.0), item(0.0, steps=4.0), item(1.0), item(1.0))
    assert (found.value, found.verdict, found.tokens, found.measures) == (0.75, "correct", 12, {"steps": 3.0})


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ((item(1.0), item(0.0)), "wrong"),
        ((item(0.0, "truncated"), item(0.0, "truncated"), item(1.0)), "truncated"),
        ((item(0.0, "truncated"), item(0.0), item(0.0)), "wrong"),
        ((item(1.0), item(0.0, "errored"), item(1.0)), "errored"),
    ],
)
def test_the_verdict_of_an_item_is_that_of_most_answers(samples: Sequence[ItemResult], verdict: Verdict) -> None:
    assert mean(*samples).verdict == verdict


def test_the_counts_of_a_score_add_up() -> None:
    rounds = [[item(float(place % 3 == number)) for place in range(12)] for number in range(3)]
    score = summarise(mean_of_samples(rounds))
    assert score.correct + score.wrong + score.truncated + score.errored == score.total == 12
    assert score.score == pytest.approx(100 / 3)


def draws(items: int, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shares of right answers that items have, half of them always or never, and the means of samples."""
    share = np.where(rng.random(items) < 0.5, rng.beta(0.7, 0.7, items), rng.random(items) < 0.4)
    return share, rng.binomial(samples, share) / samples


@pytest.mark.parametrize(("items", "samples"), [(20, 4), (82, 2), (82, 8)])
def test_the_interval_of_a_mean_of_samples_covers_the_truth(items: int, samples: int) -> None:
    rng, covered, times = np.random.default_rng(1), 0, 600
    truth = 100 * (0.5 * 0.5 + 0.5 * 0.4)
    for _ in range(times):
        low, high = mean_interval(draws(items, samples, rng)[1].tolist())
        covered += low <= truth <= high
    assert covered / times > 0.93


@pytest.mark.parametrize(("items", "samples"), [(20, 4), (82, 4)])
def test_two_gradings_of_one_model_seldom_differ_beyond_chance(items: int, samples: int) -> None:
    rng, found, times = np.random.default_rng(2), 0, 200
    for _ in range(times):
        share, first = draws(items, samples, rng)
        second = rng.binomial(samples, share) / samples
        gain = compare(results(first), results(second))
        found += gain is not None and not gain.ci.low <= 0 <= gain.ci.high
    assert found / times <= 0.08


def results(values: np.ndarray) -> list[ItemResult]:
    return [item(float(value)).model_copy(update={"id": str(place)}) for place, value in enumerate(values)]
