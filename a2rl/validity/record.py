"""The record of a run's validity, and the one way to change it: downwards."""

from collections.abc import Iterable

from a2rl.core.files import digest_of
from a2rl.run.directory import Record, RunDir
from a2rl.run.events import DrawRevealed, ValidityDecided
from a2rl.run.records import ExecuteRecord, GradeRecord
from a2rl.run.rules import rules
from a2rl.validity.checks import Checked, CheckRun
from a2rl.validity.finding import Finding, Validity

STAGE = "validity"


class ValidityRecord(Record):
    """`records/validity.json`: what the result is worth."""

    validity: Validity
    grade_digest: str
    """The digest of the grade record that was judged; another result is judged anew."""
    checks: tuple[CheckRun, ...]


def read_validity(run: RunDir) -> Validity | None:
    """Returns the validity of a run's result; None if it was not decided."""
    record = run.read(STAGE, ValidityRecord)
    return record.validity if record else None


def decide(run: RunDir, checked: Checked, seconds: float) -> ValidityRecord:
    """Writes the validity that follows from the checks, first into the ledger. It is never better than before.

    Args:
        run: A run with a grade record.
        checked: The outcome of the checks.
        seconds: What the checks took.
    """
    graded = run.need("grade", GradeRecord)
    digest, earlier = _digest(graded), run.read(STAGE, ValidityRecord)
    validity = Validity.of(weighed(checked.findings), has_result=has_result(graded))
    runs = tuple(checked.runs)
    if earlier is not None and earlier.grade_digest == digest:
        validity, runs = validity.lowered_by(earlier.validity.findings), (*earlier.checks, *runs)
    record = ValidityRecord(seconds=seconds, validity=validity, grade_digest=digest, checks=runs)
    run.ledger.append_unless(event_of(record), lambda past: past == event_of(record))
    return run.write(STAGE, record)


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
    return decide(run, Checked(findings, []), 0.0)


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


def counted_gain(run: RunDir, graded: GradeRecord) -> float:
    """Returns a run's gain as it counts in averages over runs, in points.

    A run without a result counts as zero. So does one whose result is void, unless it is a loss: cheating never pays.
    """
    validity = read_validity(run)
    return min(0.0, graded.gain) if validity is not None and validity.word == "void" else graded.gain


def _digest(graded: GradeRecord) -> str:
    return digest_of(graded.model_dump(mode="json", exclude={"seconds"}))


def may_reveal(run: RunDir) -> bool:
    """Returns whether the agent's work has ended for good: a run that a machine's failure stopped may go on."""
    graded = run.read("grade", GradeRecord)
    return graded is not None and graded.failed_stage is None and run.read("execute", ExecuteRecord) is not None


def reveal_draw(run: RunDir) -> None:
    """Writes the seed and its salt into the ledger, once, if they may be known."""
    if run.spec.draw is not None and may_reveal(run):
        revealed = DrawRevealed(seed=run.spec.draw.seed, salt=run.spec.draw.salt)
        run.ledger.append_unless(revealed, lambda _: True)
