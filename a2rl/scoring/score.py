"""Scores with honest accounting: every item is exactly one of correct, wrong, truncated or errored.

A score is the mean value of the items that could be judged, 0-100, with a 95% interval, or another figure that the task
computes from them. The interval covers whatever the few items may have been that could not be judged; where too many
failed for reasons that are not the model's, there is no score, and the reason says why. No score is not zero.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from a2rl.scoring.means import Interval, mean_interval

Verdict = Literal["correct", "wrong", "truncated", "errored"]
Statistics = Literal[2]
"""Which rules a run's splits, scores and verdicts follow, which docs/statistics.md documents."""
STATISTICS: Statistics = 2
MAX_ERRORED_SHARE = 0.02
"""Above this share of errored items a score would say more about the grader than about the model."""
FEWEST_FOR_ONE_ERRORED = 10
"""From so many items on one may be errored, whatever share it is; the interval shows what that costs."""
MOST = 0.5
"""An item counts as correct if its mean value is above this."""
TOLERANCE = 1e-6
"""In points. A score that is fitted to data may differ in the last bits between machines."""


def same(left: float | None, right: float | None) -> bool:
    """Says whether two figures are the same; None is the same as None alone."""
    if left is None or right is None:
        return left is right
    return abs(left - right) < TOLERANCE


class ItemResult(BaseModel):
    """The grader's verdict on one item."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str
    verdict: Verdict
    value: float = Field(default=0.0, ge=0, le=1)
    """What the item adds to the score, 0 to 1; for a rule-based task 1 if correct, else 0."""
    answer: str = ""
    """What the model answered, shortened. Never shown to the agent."""
    reason: str = ""
    """Why an item was errored."""
    tokens: int = 0
    """How many tokens the model generated."""
    group: str = ""
    """The kind of item it is, where a task has several and reports each."""
    measures: dict[str, float] = {}
    """Other figures that the task reports, by name; their means are shown with the score."""

    def settled(self, value: float) -> "ItemResult":
        """An errored item as if it had been judged, with this value; any other as it is."""
        if self.verdict != "errored":
            return self
        return self.model_copy(update={"verdict": "correct" if value == 1 else "wrong", "value": value})


class Group(NamedTuple):
    """The items of one kind."""

    score: float | None
    """As the whole score, 0 to 100; None where no item could be judged."""
    total: int


class TaskScore(BaseModel):
    """The score of a checkpoint on a set of items; correct + wrong + truncated + errored = total, always."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: float | None
    """0 to 100, or None with a reason."""
    reason: str = ""
    ci: Interval | None = None
    """95% interval of the score, in points."""
    total: int
    correct: int
    wrong: int
    truncated: int
    errored: int
    seconds: float = 0.0
    tokens: int = 0
    groups: dict[str, Group] = {}
    """By kind of item, where the task has kinds."""
    measures: dict[str, float] = {}
    """Means of the task's other figures over the items that could be judged, and what its headline adds."""

    def __str__(self) -> str:
        if self.score is None:
            return f"no score ({self.reason})"
        return f"{self.score:.1f}" + (f" [{self.ci.low:.1f}, {self.ci.high:.1f}]" if self.ci else "")


class Headline(NamedTuple):
    """The figure by which a task is scored, if it is not the mean of the items' values."""

    score: float | None
    """0 to 100, or None with a reason."""
    ci: Interval | None
    reason: str = ""
    measures: Mapping[str, float] = {}
    """Further figures that are shown with it."""


def mean_value(items: Sequence[ItemResult]) -> Headline:
    """Returns the usual headline: the mean value of the items."""
    values = [item.value for item in items]
    return Headline(100 * sum(values) / len(values), mean_interval(values))


def errors_tolerated(items: int) -> int:
    """Returns how many items may be errored without losing the score: 2%, and at least one of ten or more."""
    share = math.floor(MAX_ERRORED_SHARE * items + 1e-9)
    return max(1, share) if items >= FEWEST_FOR_ONE_ERRORED else share


def summarise(
    items: Sequence[ItemResult],
    seconds: float = 0.0,
    headline: Callable[[Sequence[ItemResult]], Headline] = mean_value,
) -> TaskScore:
    """Adds up item results. Errored items are left out of the headline; too many of them, and there is no score."""
    count = Counter(item.verdict for item in items)
    judged = [item for item in items if item.verdict != "errored"]
    if not items:
        found = Headline(None, None, "there was nothing to grade")
    elif count["errored"] > errors_tolerated(len(items)):
        first = next(item for item in items if item.verdict == "errored")
        problem = f"{count['errored']} of {len(items)} items could not be judged"
        found = Headline(None, None, f"{problem}; item {first.id}: {first.reason}")
    else:
        found = headline(judged)
        if count["errored"]:
            found = found._replace(ci=_whatever_they_were(items, found.ci, headline))
    return TaskScore(
        score=found.score,
        reason=found.reason,
        ci=found.ci,
        total=len(items),
        correct=count["correct"],
        wrong=count["wrong"],
        truncated=count["truncated"],
        errored=count["errored"],
        seconds=round(seconds, 3),
        tokens=sum(item.tokens for item in items),
        groups={
            name: _group([item for item in items if item.group == name])
            for name in sorted({item.group for item in items} - {""})
        },
        measures=_mean_measures([item.measures for item in judged]) | dict(found.measures),
    )


def _whatever_they_were(
    items: Sequence[ItemResult], judged: Interval | None, headline: Callable[[Sequence[ItemResult]], Headline]
) -> Interval | None:
    """Widens the interval so that it also holds if every errored item had the lowest or the highest value."""
    ends = [judged, *(headline([item.settled(value) for item in items]).ci for value in (0.0, 1.0))]
    known = [end for end in ends if end is not None]
    if judged is None or len(known) < len(ends):
        return None
    return Interval(min(end.low for end in known), max(end.high for end in known))


def _group(items: Sequence[ItemResult]) -> Group:
    judged = [item.value for item in items if item.verdict != "errored"]
    return Group(100 * sum(judged) / len(judged) if judged else None, len(items))


def _mean_measures(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each figure over the items that have it."""
    named: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            named.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in named.items()}


def mean_of_samples(rounds: Sequence[Sequence[ItemResult]]) -> list[ItemResult]:
    """Returns one result for each item from the results of several rounds over the same items in the same order.

    Intervals and tests treat an item with all of its answers as one observation (a cluster), so they cover both the
    choice of the items and the randomness of the answers.
    """
    if len(rounds) == 1:
        return list(rounds[0])
    return [_mean(samples) for samples in zip(*rounds, strict=True)]


def _mean(samples: Sequence[ItemResult]) -> ItemResult:
    """Returns the mean of an item's samples. The item is errored if one of them is: a part would not be its mean."""
    first, count = samples[0], len(samples)
    tokens = sum(sample.tokens for sample in samples)
    errored = [sample for sample in samples if sample.verdict == "errored"]
    if errored:
        return errored[0].model_copy(update={"tokens": tokens})
    value = min(1.0, sum(sample.value for sample in samples) / count)
    return first.model_copy(
        update={
            "verdict": _verdict(samples, value),
            "value": value,
            "tokens": tokens,
            "measures": dict(sorted(_mean_measures([sample.measures for sample in samples]).items())),
        }
    )


def _verdict(samples: Sequence[ItemResult], value: float) -> Verdict:
    if value > MOST:
        return "correct"
    truncated = sum(sample.verdict == "truncated" for sample in samples)
    return "truncated" if truncated > len(samples) / 2 else "wrong"
