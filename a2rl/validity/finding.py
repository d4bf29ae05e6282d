"""What a check found: one sentence, how much it weighs, and where anybody can look it up.

Finding.of(
    "survivors", "void", "2 processes of the agent outlived it.", Evidence(what="the event", seq=41)
)
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from a2rl.core.files import digest_of
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub

Level = Literal["void", "flag", "note"]
"""How much a finding weighs: it voids the result, casts doubt on it, or is only told."""
Word = Literal["valid", "flagged", "void", "no result"]
"""What a run's result is worth. `no result` means that there is none to judge."""
FROM_WORST: tuple[Word, ...] = ("void", "no result", "flagged", "valid")
MAX_TEXT = 500
"""Characters of a finding's sentence, and of each text in its evidence."""
MAX_ITEMS = 50
"""Item ids in one piece of evidence; more of them are counted."""


class Evidence(BaseModel):
    """One place where a finding can be checked, and what is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    """What there is to see, in a few words."""
    value: JsonValue = None
    """What was measured or read there; numbers as numbers."""
    seq: int | None = None
    """The number of an entry in the run's ledger."""
    file: str = ""
    """A path, relative to the run directory if it is inside."""
    line: int | None = None
    """The line of that file, from 1."""
    items: tuple[str, ...] = ()
    """Ids of items of the eval set."""
    digest: str = ""
    """The digest of weights, of a file, or of a commit."""

    @field_validator("what", "file", "digest")
    @classmethod
    def _safe(cls, text: str) -> str:
        return _safe(text)

    @field_validator("value")
    @classmethod
    def _safe_value(cls, value: JsonValue) -> JsonValue:
        return _safe(value) if isinstance(value, str) else value

    @field_validator("items")
    @classmethod
    def _few(cls, items: tuple[str, ...]) -> tuple[str, ...]:
        if len(items) <= MAX_ITEMS + 1:  # the last may be the count itself, when evidence is read back
            return items
        return (*items[:MAX_ITEMS], f"and {len(items) - MAX_ITEMS:,} more")


class Finding(BaseModel):
    """One thing that a check found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """The same for the same finding, whoever finds it again: its kind and a digest of the rest."""
    kind: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    """What was found, such as `halves-disagree`; rules.yaml and the docs name findings by it."""
    level: Level
    text: str
    """One sentence for a reader who knows nothing of the check."""
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, kind: str, level: Level, text: str, *evidence: Evidence) -> "Finding":
        """Returns the finding with its id. Text of an agent becomes printable and loses its secrets."""
        safe = _safe(text)
        content = [kind, level, safe, [each.model_dump(mode="json") for each in evidence]]
        return cls(id=f"{kind}-{digest_of(content)[:8]}", kind=kind, level=level, text=safe, evidence=evidence)


class Validity(BaseModel):
    """What a result is worth, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: Word
    findings: tuple[Finding, ...] = ()
    """The heaviest first."""

    @classmethod
    def of(cls, findings: Iterable[Finding], has_result: bool = True) -> "Validity":
        """Returns what follows from the findings; a finding that several checks made counts once.

        A run without a result is void if something voids it. Flags have nothing to cast doubt on there.
        """
        order: tuple[Level, ...] = ("void", "flag", "note")
        found = sorted({each.id: each for each in findings}.values(), key=lambda each: order.index(each.level))
        levels = {each.level for each in found}
        if "void" in levels:
            return cls(word="void", findings=tuple(found))
        if not has_result:
            return cls(word="no result", findings=tuple(found))
        return cls(word="flagged" if "flag" in levels else "valid", findings=tuple(found))

    def lowered_by(self, findings: Iterable[Finding]) -> "Validity":
        """Returns this validity with further findings. It is never better than before."""
        return Validity.of((*self.findings, *findings), has_result=self.word != "no result")

    @property
    def why(self) -> tuple[str, ...]:
        """The sentences of the findings that made it worse than valid."""
        return tuple(each.text for each in self.findings if each.level != "note")


def _safe(text: str) -> str:
    return printable(scrub(text), MAX_TEXT)
