"""Ranks submissions: one rule for the answer to the agent, the final result and its verification. Also the remarks that
stand wherever the figures of the result do."""

from collections.abc import Sequence
from typing import NamedTuple

from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry, Ledger, grades_among
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.scoring.score import TaskScore


class Ranked(NamedTuple):
    """A submission and its public score."""

    submission: SubmissionAccepted
    score: TaskScore


def best_submission(ledger: Ledger) -> Ranked | None:
    """Returns the submission with the highest public score (the earliest of equals); None if none has a score."""
    return best_among(ledger.entries())


def best_among(entries: Sequence[Entry]) -> Ranked | None:
    """Returns the best submission in these entries; None if none has a score."""
    grades = grades_among(entries)
    scored = [
        Ranked(event, grade.result)
        for event in (entry.event for entry in entries)
        if isinstance(event, SubmissionAccepted)
        and (grade := grades.get(event.weights_digest)) is not None
        and grade.result.score is not None
    ]
    return max(scored, key=lambda each: (each.score.score or 0.0, -each.submission.submission_id), default=None)


def chosen_among(run: RunDir) -> int:
    """Returns how many distinct checkpoints the result was chosen among, by their scores on the final items.

    It is 1 under the strict protocol, where the final items are not used for the choice.
    """
    if run.spec.protocol == "strict":
        return 1
    return max(1, sum(grade.result.score is not None for grade in run.ledger.grades().values()))


def selection_note(run: RunDir) -> str:
    """Returns the remark that belongs next to the result wherever it is shown; empty under the strict protocol."""
    if run.spec.protocol == "strict":
        return ""
    if (among := chosen_among(run)) == 1:
        return "only submission, on the whole eval set"
    note = f"best of {among} submissions on the whole eval set; selection makes it optimistic"
    graded = run.read("grade", GradeRecord)
    if graded is None or graded.cross_fitted is None:
        return note
    return f"{note} (cross-fitted, the gain is {graded.cross_fitted:+.1f} points)"


def sample_in_words(limit: int | None, items: int | None) -> str:
    """Returns the remark for a sample, such as `sample of 64 of 1,319`; empty for a whole eval set.

    Args:
        limit: The number of items in the sample; None: all.
        items: The number of items in the eval set; None: unknown.
    """
    if limit is None or limit == items:
        return ""
    return f"sample of {limit:,}" + ("" if items is None else f" of {items:,}")


def sample_note(run: RunDir) -> str:
    """Returns the remark that belongs next to a run's figures wherever they are shown; empty for a whole eval set."""
    ready = run.read("setup", SetupRecord)
    return sample_in_words(run.spec.limit, ready.eval_items if ready else None)
