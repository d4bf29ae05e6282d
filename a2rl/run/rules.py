"""The rules of the benchmark, from rules.yaml: one source for instructions, hosts, quotas and checks.

rules().instructions      # the lines that agents are told
rules().level("no-code")  # "flag"
"""

from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("rules.yaml")
RuleLevel = Literal["void", "flag", "note"]


class Rule(BaseModel):
    """One rule."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tell: str = ""
    """What agents are told, in Markdown; empty if other text says it."""
    findings: dict[str, RuleLevel] = {}
    """What breaks the rule, by the kind of the finding, and how much it weighs."""


class Listed(Rule):
    """A rule with a list of what is allowed."""

    allowed: tuple[str, ...] = ()


class Quotas(Rule):
    """How much an agent may ask for."""

    submissions: int = Field(ge=1)


class Rules(BaseModel):
    """The content of rules.yaml. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
