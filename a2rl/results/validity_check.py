"""A part of `a2rl verify`: the validity in the records is the one in the ledger, and it never became better."""

from a2rl.core.errors import IntegrityError
from a2rl.run.directory import RunDir
from a2rl.run.events import ValidityDecided
from a2rl.validity.finding import FROM_WORST, Validity
from a2rl.validity.record import STAGE, ValidityRecord, event_of


def check_validity(run: RunDir) -> None:
    """Checks the validity of a run; one that was not decided passes, as in runs of earlier versions.

    Raises:
        IntegrityError: The record was changed, or the validity of a result became better.
    """
    record, decided = run.read(STAGE, ValidityRecord), run.ledger.events(ValidityDecided)
    _check_order(decided)
    if record is None:
        return
    _require(bool(decided) and decided[-1] == event_of(record), "the validity in the record is not the ledger's")
    _require(
        Validity.of(record.validity.findings, record.validity.word != "no result").word == record.validity.word,
        "the validity in the record does not follow from its findings",
    )
    for each in record.validity.findings:
        same = type(each).of(each.kind, each.level, each.text, *each.evidence)
        _require(same.id == each.id, f"the finding {each.id} was changed after it was made")


def _check_order(decided: list[ValidityDecided]) -> None:
    worst: dict[str, int] = {}
    for event in decided:
        rank = [str(word) for word in FROM_WORST].index(event.validity) if event.validity in FROM_WORST else -1
        _require(rank >= 0, f"the ledger has an unknown validity {event.validity!r}")
        _require(rank <= worst.get(event.grade_digest, rank), "the validity of a result became better")
        worst[event.grade_digest] = rank


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise IntegrityError(problem)
