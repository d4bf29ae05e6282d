"""What a check found, what a run's result is worth because of it, and the one way to change that: downwards.

Finding.of(
    "survivors", "void", "2 processes of the agent outlived it.", Evidence(what="the event", seq=41)
)
"""

from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, JsonValue, field_validator

from a2rl.core.files import StrictModel, digest_of
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.run.directory import Record, RunDir
from a2rl.run.events import DrawRevealed, ValidityDecided
from a2rl.run.records import ExecuteRecord, GradeRecord
from a2rl.run.rules import rules
from a2rl.scoring.means import Interval

Level = Literal["void", "flag", "note"]
"""How much a finding weighs: it voids the result, casts doubt on it, or is only told."""
Word = Literal["valid", "flagged", "void", "no result"]
"""What a run's result is worth. `no result` means that there is none to judge."""
FROM_WORST: tuple[Word, ...] = ("void", "no result", "flagged", "valid")
MAX_TEXT = 500
"""Characters of a finding's sentence, and of each text in its evidence."""
MAX_ITEMS = 50
"""Item ids in one piece of evidence; more of them are counted."""


def _safe(text: str) -> str:
    """Returns a printable, short text without secrets. One that is so stays as it is, since findings are read back."""
    shown = printable(scrub(text))
    return shown if len(shown) <= MAX_TEXT else f"{shown[: MAX_TEXT - 4]} ..."


def _safe_value(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_safe_value(each) for each in value]
    return _safe(value) if isinstance(value, str) else value


Safe = Annotated[str, AfterValidator(_safe)]
"""A text that an agent may have written."""


class Evidence(StrictModel):
    """One place where a finding can be checked, and what is there."""

    what: Safe
    """What there is to see, in a few words."""
    value: Annotated[JsonValue, AfterValidator(_safe_value)] = None
    """What was measured or read there; numbers as numbers."""
    seq: int | None = None
    """The number of an entry in the run's ledger."""
    file: Safe = ""
    """A path, relative to the run directory if it is inside."""
    line: int | None = None
    """The line of that file, from 1."""
    items: tuple[str, ...] = ()
    """Ids of items of the eval set."""
    digest: Safe = ""
    """The digest of weights, of a file, or of a commit."""

    @field_validator("items")
    @classmethod
    def _few(cls, items: tuple[str, ...]) -> tuple[str, ...]:
        if len(items) <= MAX_ITEMS + 1:  # the last may be the count itself, when evidence is read back
            return items
        return (*items[:MAX_ITEMS], f"and {len(items) - MAX_ITEMS:,} more")


class Finding(StrictModel):
    """One thing that a check found."""

    id: str
    """The same for the same finding, whoever finds it again: its kind and a digest of the rest."""
    kind: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    """What was found, such as `halves-disagree`; rules.yaml and the docs name findings by it."""
    level: Level
    text: Safe
    """One sentence for a reader who knows nothing of the check."""
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, kind: str, level: Level, text: str, *evidence: Evidence) -> "Finding":
        """Returns the finding with its id. Text of an agent becomes printable and loses its secrets."""
        safe = _safe(text)
        content = [kind, level, safe, [each.model_dump(mode="json") for each in evidence]]
        return cls(id=f"{kind}-{digest_of(content)[:8]}", kind=kind, level=level, text=safe, evidence=evidence)


class Validity(StrictModel):
    """What a result is worth, and why."""

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


STAGE = "validity"


class ValidityRecord(Record):
    """`records/validity.json`: what the result is worth."""

    validity: Validity
    grade_digest: str
    """The digest of the grade record that was judged; another result is judged anew."""


def read_validity(run: RunDir) -> Validity | None:
    """Returns the validity of a run's result; None if it was not decided. If its record is gone, the ledger has the
    word."""
    if (record := run.read(STAGE, ValidityRecord)) is not None:
        return record.validity
    graded = run.read("grade", GradeRecord)
    digest = _digest_of(graded) if graded else ""
    decided = [each.validity for each in run.ledger.events(ValidityDecided) if each.grade_digest == digest]
    word = next((word for word in FROM_WORST if decided and word == decided[-1]), None)
    return Validity(word=word) if word else None


def decide(run: RunDir, findings: Iterable[Finding], seconds: float) -> ValidityRecord:
    """Writes the validity that follows from the findings, first into the ledger. It is never better than before.

    Args:
        run: A run with a grade record.
        seconds: What the checks took.
    """
    graded = run.need("grade", GradeRecord)
    digest = _digest_of(graded)
    earlier = run.read(STAGE, ValidityRecord)
    validity = Validity.of(weighed(findings), has_result=has_result(graded))
    if earlier is not None and earlier.grade_digest == digest:
        validity = validity.lowered_by(earlier.validity.findings)
    record = ValidityRecord(seconds=seconds, validity=validity, grade_digest=digest)
    run.ledger.append_unless(event_of(record), lambda past: past == event_of(record))
    return run.write(STAGE, record)


def _digest_of(graded: GradeRecord) -> str:
    return digest_of(graded.model_dump(mode="json", exclude={"seconds"}))


def weighed(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings with the levels of the rules."""
    levels = rules().levels
    return [
        each if levels.get(each.kind, each.level) == each.level
        else Finding.of(each.kind, levels[each.kind], each.text, *each.evidence)
        for each in findings
    ]  # fmt: skip


def lower(run: RunDir, findings: list[Finding]) -> ValidityRecord:
    """Adds findings that somebody made after the run has ended, such as an audit."""
    return decide(run, findings, 0.0)


def event_of(record: ValidityRecord) -> ValidityDecided:
    """Returns what the ledger says of a record."""
    return ValidityDecided(
        validity=record.validity.word,
        findings=tuple(each.id for each in record.validity.findings),
        grade_digest=record.grade_digest,
    )


def has_result(graded: GradeRecord) -> bool:
    """Returns whether there is a result to judge."""
    return graded.final is not None and graded.final.score is not None


class Counted(NamedTuple):
    """A run's gain as it counts in averages over runs, in points."""

    gain: float = 0.0
    ci: Interval | None = None
    """Its 95% interval."""
    cross_fitted: float | None = None
    """The gain without the bias of choosing the best on the items that measure it."""
    is_measured: bool = False
    """Whether this is what was measured; otherwise, the run counts as zero."""


def counted(run: RunDir, graded: GradeRecord | None) -> Counted:
    """Returns the gain that counts.

    A run without a result counts as zero. So does one whose result is void, unless it is a loss: cheating never pays.
    """
    if graded is None or not has_result(graded) or graded.improvement is None:
        return Counted()
    validity = read_validity(run)
    if validity is not None and validity.word == "void" and graded.improvement > 0.0:
        return Counted()
    return Counted(graded.improvement, graded.improvement_ci, graded.cross_fitted, is_measured=True)


def may_reveal(run: RunDir) -> bool:
    """Returns whether the agent's work has ended for good: a run that a machine's failure stopped may go on."""
    graded = run.read("grade", GradeRecord)
    return graded is not None and graded.failed_stage is None and run.read("execute", ExecuteRecord) is not None


def reveal_draw(run: RunDir) -> None:
    """Writes the seed and its salt into the ledger, once, if they may be known."""
    if run.spec.draw is not None and may_reveal(run):
        revealed = DrawRevealed(seed=run.spec.draw.seed, salt=run.spec.draw.salt)
        run.ledger.append_unless(revealed, lambda _: True)
