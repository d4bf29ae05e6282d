"""Which submission counts: the one rule, for the answer to the agent, the result and its check."""

from typing import NamedTuple

from a2rl.events import SubmissionAccepted
from a2rl.ledger import Ledger
from a2rl.run import RunDir
from a2rl.score import TaskScore


class Ranked(NamedTuple):
    """A submission and its public score."""

    submission: SubmissionAccepted
    score: TaskScore


def best_submission(ledger: Ledger) -> Ranked | None:
    """The submission with the highest public score, the earliest of equals; None if none has a score."""
    grades = ledger.grades()
    scored = [
        Ranked(event, grade.result)
        for event in ledger.events(SubmissionAccepted)
        if (grade := grades.get(event.weights_digest)) is not None and grade.result.score is not None
    ]
    return max(scored, key=lambda each: (each.score.score or 0.0, -each.submission.submission_id), default=None)


def chosen_among(run: RunDir) -> int:
    """Of how many distinct checkpoints the result is the best on the very items that decide. 1 under the strict
    protocol, where other items decide."""
    if run.spec.protocol == "strict":
        return 1
    return max(1, sum(grade.result.score is not None for grade in run.ledger.grades().values()))


def selection_note(run: RunDir) -> str:
    """What has to be said wherever the result of a run is shown; nothing under the strict protocol."""
    if run.spec.protocol == "strict":
        return ""
    if (among := chosen_among(run)) == 1:
        return "the only submission, on the whole eval set"
    return f"best of {among} submissions on the whole eval set; selection makes it optimistic"
