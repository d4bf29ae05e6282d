"""A part of `a2rl verify`: the eval set and its halves follow from the draw that the run committed to at its start."""

from a2rl.core.errors import IntegrityError
from a2rl.run.directory import RunDir
from a2rl.run.draw import Draw
from a2rl.run.events import DrawRevealed, RunOpened
from a2rl.run.reveal import may_reveal
from a2rl.tasks.drawn import can_draw, drawn_digest


def check_draw(run: RunDir) -> None:
    """Checks the draw of a run; one from before there was a draw passes.

    Raises:
        IntegrityError: Something does not follow from what the run committed to.
    """
    spec, opened = run.spec, run.ledger.events(RunOpened)
    commitment = opened[0].draw if opened else ""
    if spec.draw is None or not opened:
        _require(not commitment, "the run committed to a draw, but spec.json has none")
        return
    _require(spec.draw.commitment == commitment, "the draw in spec.json is not the one that the run committed to")
    _require(spec.split_seed == spec.draw.halves_seed, "the halves do not follow from the draw")
    _check_revealed(run, spec.draw)
    if can_draw(spec.task, spec.variant):
        found = drawn_digest(spec.task, spec.draw.items_seed(spec.task))
        problem = "the items do not follow from the draw"
        if (made_by := spec.versions.get("a2rl")) is not None:
            problem += f" (the run was made by a2rl {made_by}: another version may draw other items)"
        _require(found == opened[0].data_digest, problem)


def _check_revealed(run: RunDir, draw: Draw) -> None:
    revealed = [Draw(seed=event.seed, salt=event.salt) for event in run.ledger.events(DrawRevealed)]
    if run.record_path("validity").exists():
        _require(bool(revealed) or not may_reveal(run), "the run has ended without revealing its draw")
    _require(all(each == draw for each in revealed), "the draw that the run revealed is not the one it committed to")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise IntegrityError(problem)
