"""How many seeds a suite needs to show a difference between two stacks: from the runs of this checkout, if it has any.

plan = seed_plan("gsm8k", "mini", 10.0, recorded)
plan.seeds, plan.deviation, plan.deviation_from
"""

from collections.abc import Sequence
from math import sqrt

from pydantic import BaseModel, ConfigDict

from a2rl.results.suite.leaderboard import boards
from a2rl.results.suite.run_summary import RunSummary
from a2rl.scoring.seeds import seeds_needed
from a2rl.task_api.contract import Variant

ASSUMED_DEVIATION = 10.0
"""The standard deviation between runs, in points, where too few are recorded. An assumption: 5 to 20 are common."""
FEWEST_FREEDOM = 4
"""A recorded deviation counts if it rests on this many runs besides the first of each stack."""


class SeedPlan(BaseModel):
    """The number of seeds for one task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    difference: float
    """Points between the mean gains of two stacks."""
    deviation: float
    """The standard deviation of the gains of one stack's runs, in points."""
    deviation_from: str
    """Where it is from, in words."""
    seeds: int | None
    """The number of runs of each stack; None if more than a thousand are needed."""


def seed_plan(task: str, variant: Variant, difference: float, recorded: Sequence[RunSummary]) -> SeedPlan:
    """Returns how many seeds show a difference with a probability of 80%, at 95% confidence, on the same items.

    Args:
        task: The task.
        variant: Its variant.
        difference: The true difference between two stacks, in points; positive.
        recorded: Runs of any task.
    """
    deviation, source = _deviation(task, variant, recorded)
    return SeedPlan(
        difference=difference, deviation=deviation, deviation_from=source, seeds=seeds_needed(difference, deviation)
    )


def _deviation(task: str, variant: Variant, recorded: Sequence[RunSummary]) -> tuple[float, str]:
    """Returns the standard deviation within stacks, pooled over the stacks, and where it is from."""
    runs = [run for run in recorded if run.task == task and run.variant == variant and run.is_finished]
    groups = [[run.gain for run in cell.runs] for board in boards(runs) for cell in board.cells]
    freedom = sum(len(gains) - 1 for gains in groups)
    squares = sum((gain - sum(gains) / len(gains)) ** 2 for gains in groups for gain in gains)
    if freedom < FEWEST_FREEDOM or squares == 0:
        return ASSUMED_DEVIATION, "assumed"
    return sqrt(squares / freedom), f"{sum(len(gains) for gains in groups)} recorded runs"
