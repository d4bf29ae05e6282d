"""What grading may take: the time of one grade, and how much of it one run may cause."""

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_SUBMISSIONS = 100
"""In a run that sets no quota of its own. People and LLM agents make some ten; a loop that submits makes thousands."""
MAX_WAITING = 4
"""Submissions of a run that may be copied or wait for a grade at a time, so that at the deadline so many are left to
grade at most. Further requests wait for their turn."""
UNKNOWN_S = 3600.0
"""Enough for a grade where nothing is known of the base model's, unless the budget is longer."""
LONGEST_S = 24 * 3600.0
"""Enough for any grade: of a base model, which comes before anything is known."""


class GradingLimits(BaseModel):
    """The section `grading.limits` of params.yaml: when a grade is ended by force. All in seconds, but the factor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    times_baseline: float = Field(default=20.0, gt=0)
    """A grade may take so many times as long as the base model's: a model may write more than the base model does, on a
    machine that its agent trains on."""
    at_least_s: float = Field(default=300.0, gt=0)
    """Whatever the base model took."""
    silence_s: float = Field(default=60.0, gt=0)
    """A grader's process that gives no sign of life for so long (it gives one a second) is stuck."""

    def time_limit_s(self, baseline_s: float | None, budget_s: float) -> float:
        """How long one grade may take.

        Args:
            baseline_s: what the base model's grade took; None where that is not known.
            budget_s: of the run.
        """
        if baseline_s is None:
            return max(self.at_least_s, UNKNOWN_S, budget_s)
        return max(self.at_least_s, self.times_baseline * baseline_s)
