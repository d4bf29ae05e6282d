"""Checks what decides whether a result counts: its validity, and the draw of the eval set and its halves."""

from a2rl.results.verify.check import require
from a2rl.run.directory import RunDir
from a2rl.run.draw import Draw
from a2rl.run.events import DrawRevealed, RunOpened, ValidityDecided
from a2rl.run.reveal import may_reveal
from a2rl.task_api.drawn import can_draw, drawn_digest
from a2rl.validity.finding import FROM_WORST, Validity
from a2rl.validity.record import STAGE, ValidityRecord, event_of


def check_validity(run: RunDir) -> None:
    """Checks the validity of a run; one that was not decided passes.

    Raises:
        IntegrityError: The record was changed, or the validity of a result became better.
    """
    record, decided = run.read(STAGE, ValidityRecord), run.ledger.events(ValidityDecided)
    _check_order(decided)
    if record is None:
        return
    require(bool(decided) and decided[-1] == event_of(record), "the validity in the record is not the ledger's")
    require(
        Validity.of(record.validity.findings, record.validity.word != "no result").word == record.validity.word,
        "the validity in the record does not follow from its findings",
    )
    for each in record.validity.findings:
        same = type(each).of(each.kind, each.level, each.text, *each.evidence)
        require(same.id == each.id, f"the finding {each.id} was changed after it was made")


def _check_order(decided: list[ValidityDecided]) -> None:
    worst: dict[str, int] = {}
    for event in decided:
        rank = [str(word) for word in FROM_WORST].index(event.validity) if event.validity in FROM_WORST else -1
        require(rank >= 0, f"the ledger has an unknown validity {event.validity!r}")
        require(rank <= worst.get(event.grade_digest, rank), "the validity of a result became better")
        worst[event.grade_digest] = rank


def check_draw(run: RunDir) -> None:
    """Checks that the eval set and its halves follow from the draw that the run committed to at its start.

    Raises:
        IntegrityError: Something does not follow from what the run committed to.
    """
    spec, opened = run.spec, run.ledger.events(RunOpened)
    commitment = opened[0].draw if opened else ""
    if spec.draw is None or not opened:
        require(not commitment, "the run committed to a draw, but spec.json has none")
        return
    require(spec.draw.commitment == commitment, "the draw in spec.json is not the one that the run committed to")
    require(spec.split_seed == spec.draw.halves_seed, "the halves do not follow from the draw")
    _check_revealed(run, spec.draw)
    if can_draw(spec.task, spec.variant):
        found = drawn_digest(spec.task, spec.draw.items_seed(spec.task))
        problem = "the items do not follow from the draw"
        if (made_by := spec.versions.get("a2rl")) is not None:
            problem += f" (the run was made by a2rl {made_by}: another version may draw other items)"
        require(found == opened[0].data_digest, problem)


def _check_revealed(run: RunDir, draw: Draw) -> None:
    revealed = [Draw(seed=event.seed, salt=event.salt) for event in run.ledger.events(DrawRevealed)]
    if run.record_path("validity").exists():
        require(bool(revealed) or not may_reveal(run), "the run has ended without revealing its draw")
    require(all(each == draw for each in revealed), "the draw that the run revealed is not the one it committed to")
