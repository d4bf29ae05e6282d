"""A judge's noise: how far two answers of the same judge to the same question differ.

A sample of a grade's questions is asked twice, the second time without the cache. The two verdicts become measures of
the item, and `noise_of` adds them up:

    noise_of(items)    # JudgeNoise(asked_twice=40, agreement=0.93, verdict_sd=0.12, score_sd=0.84)
"""

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

AGREES, DIFFERENCE = "judge asked twice, agrees", "judge asked twice, difference"
EVEN = 0.5


class JudgeNoise(BaseModel):
    """The noise of a judge, measured on a sample of a grade's items."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked_twice: int
    agreement: float
    """Share of the questions to which both answers are on the same side, from 0 to 1."""
    verdict_sd: float
    """Standard deviation of one verdict around the judge's mean verdict, from 0 to 1."""
    score_sd: float
    """What that adds to the standard deviation of the mean verdict over all items, in points."""

    def __str__(self) -> str:
        return (
            f"{self.asked_twice} judgements asked twice: {100 * self.agreement:.0f}% agree; "
            f"the judge's noise is {self.score_sd:.2f} points of the score (standard deviation)"
        )


def noise_measures(first: float, again: float) -> dict[str, float]:
    """Returns the measures of an item whose question was asked twice, from both verdicts."""
    return {AGREES: float((first > EVEN) == (again > EVEN)), DIFFERENCE: abs(first - again)}


def noise_of(measures: Sequence[Mapping[str, float]]) -> JudgeNoise | None:
    """Returns the judge's noise, given the measures of all judged items; None if nothing was asked twice."""
    twice = [each for each in measures if DIFFERENCE in each]
    if not twice:
        return None
    variance = sum(each[DIFFERENCE] ** 2 for each in twice) / (2 * len(twice))  # of one of two equally noisy verdicts
    return JudgeNoise(
        asked_twice=len(twice),
        agreement=sum(each[AGREES] for each in twice) / len(twice),
        verdict_sd=math.sqrt(variance),
        score_sd=100 * math.sqrt(variance / len(measures)),
    )
