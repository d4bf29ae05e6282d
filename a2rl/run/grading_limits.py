"""Limits on grading: the time for one grade, and the amount of grading in one run."""

from pydantic import BaseModel, ConfigDict, Field

from a2rl.run.rules import rules

DEFAULT_SUBMISSIONS = rules().quotas.submissions
"""The limit on submissions for a run that does not set one. It stops loops that would submit thousands."""
TYPICAL_SUBMISSIONS = 10
"""The usual number of submissions that people and LLM agents make in a run."""
MAX_WAITING = 4
"""The number of submissions of a run that may be copied or wait for a grade at the same time. It is small, so that few
are left to grade at the deadline. Further requests wait for their turn."""
UNKNOWN_S = 3600.0
"""The time limit for a grade if the time of the base model's grade is unknown, unless the budget is longer."""
LONGEST_S = 24 * 3600.0
"""The time limit for the base model's grade, which comes first, so that there is no time to compare with."""


class GradingLimits(BaseModel):
    """The section `grading.limits` of params.yaml: when a grade is ended by force. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    times_baseline: float = Field(default=20.0, gt=0)
    """A grade may take this many times as long as the base model's grade. A trained model may write longer answers, and
    its agent may be training on the same machine."""
    at_least_s: float = Field(default=300.0, gt=0)
    """The time limit is never shorter than this, however fast the base model's grade was."""
    silence_s: float = Field(default=60.0, gt=0)
    """A grading process that sends no heartbeat for this long is considered stuck. It sends one each second."""
    memory_wait_s: float = Field(default=180.0, ge=0)
    """A grade for which too little memory is free is tried again and again for this long: an agent may free some."""

    def time_limit_s(self, baseline_s: float | None, budget_s: float) -> float:
        """Returns how many seconds one grade may take.

        Args:
            baseline_s: The seconds that the base model's grade took; None if that is unknown.
            budget_s: The run's budget in seconds.
        """
        if baseline_s is None:
            return max(self.at_least_s, UNKNOWN_S, budget_s)
        return max(self.at_least_s, self.times_baseline * baseline_s)
