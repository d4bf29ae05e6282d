"""The rules of the benchmark, from rules.yaml: one source for instructions, hosts, quotas and checks. And the limits on
grading: the time for one grade, and the amount of grading in one run.

rules().instructions      # the lines that agents are told
rules().level("no-code")  # "flag"
"""

from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from a2rl.core.files import StrictModel

FILE = Path(__file__).with_name("rules.yaml")
RuleLevel = Literal["void", "flag", "note"]


class Rule(StrictModel):
    """One rule."""

    tell: str = ""
    """What agents are told, in Markdown; empty if other text says it."""
    findings: dict[str, RuleLevel] = Field(default_factory=dict)
    """What breaks the rule, by the kind of the finding, and how much it weighs."""


class Listed(Rule):
    """A rule with a list of what is allowed."""

    allowed: tuple[str, ...] = ()


class Quotas(Rule):
    """How much an agent may ask for."""

    submissions: int = Field(ge=1)


class Rules(StrictModel):
    """The content of rules.yaml. Unknown keys are errors."""

    models: Rule
    data: Rule
    teachers: Listed
    """LLMs that an agent may use besides its driver, by the names under which they are requested."""
    provider: Listed
    """What requests to the LLM may ask of its provider besides text: see a2rl/llm/relay/messages.py."""
    place: Rule
    code: Rule
    hosts: Listed
    """Hosts that every agent may reach, such as `mirror.example:8080`."""
    quotas: Quotas

    @property
    def _all(self) -> tuple[Rule, ...]:
        return (self.models, self.data, self.teachers, self.provider, self.place, self.code, self.hosts, self.quotas)

    @property
    def instructions(self) -> tuple[str, ...]:
        """What agents are told, rule by rule."""
        return tuple(rule.tell for rule in self._all if rule.tell)

    @property
    def levels(self) -> dict[str, RuleLevel]:
        """How much each kind of finding weighs. A kind that is not listed keeps the level that its check gives it."""
        return {kind: level for rule in self._all for kind, level in rule.findings.items()}


@cache
def rules() -> Rules:
    """Returns the rules of this checkout. They are part of its code, so a mistake in them is a programming error."""
    return Rules.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


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


class GradingLimits(StrictModel):
    """The section `grading.limits` of params.yaml: when a grade is ended by force. Times are in seconds."""

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
        """
        if baseline_s is None:
            return max(self.at_least_s, UNKNOWN_S, budget_s)
        return max(self.at_least_s, self.times_baseline * baseline_s)
