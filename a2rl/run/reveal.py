"""Reveals the draw of a run in its ledger, as soon as that can no longer help its agent."""

from a2rl.run.directory import RunDir
from a2rl.run.events import DrawRevealed
from a2rl.run.records import ExecuteRecord, GradeRecord


def may_reveal(run: RunDir) -> bool:
    """Returns whether the agent's work has ended for good: a run that a machine's failure stopped may go on."""
    graded = run.read("grade", GradeRecord)
    return graded is not None and graded.failed_stage is None and run.read("execute", ExecuteRecord) is not None


def reveal_draw(run: RunDir) -> None:
    """Writes the seed and its salt into the ledger, once, if they may be known."""
    if run.spec.draw is not None and may_reveal(run):
        revealed = DrawRevealed(seed=run.spec.draw.seed, salt=run.spec.draw.salt)
        run.ledger.append_unless(revealed, lambda _: True)
