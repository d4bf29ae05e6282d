"""How much grading a run may cause: so many submissions, and so many seconds of the grader's time."""

from collections.abc import Iterable
from typing import NamedTuple

from a2rl.budget import format_duration
from a2rl.events import Graded, GradingFailed, SubmissionAccepted
from a2rl.grading.chain import open_receipts, ungraded
from a2rl.ledger import Entry
from a2rl.records import BaselineRecord
from a2rl.run import RunDir


class Quota(NamedTuple):
    """What is left of it."""

    submissions: int
    seconds: float
    """Negative: one grade more was begun while there was something left."""

    @property
    def spent(self) -> str:
        """What is used up, empty if nothing is."""
        if self.submissions <= 0:
            return "submissions"
        return "grading time" if self.seconds <= 0 else ""


def quota_left(run: RunDir, entries: Iterable[Entry]) -> Quota:
    """Of a run with these entries in its ledger.

    What is being copied counts as if it were accepted, and what waits for a grade as if it took as long as usual, so
    that many at once cannot get past it.
    """
    entries, spec = list(entries), run.spec
    under_way = len(open_receipts(entries))
    accepted = sum(isinstance(entry.event, SubmissionAccepted) for entry in entries)
    expected_s = (under_way + len(ungraded(entries))) * usual_s(run, entries)
    return Quota(
        max(0, spec.submissions_quota - accepted - under_way), spec.grading_quota_s - graded_s(entries) - expected_s
    )


def graded_s(entries: Iterable[Entry]) -> float:
    """Seconds that the grader has worked for a run's submissions, what failed included."""
    seconds = 0.0
    for event in (entry.event for entry in entries):
        if isinstance(event, Graded):
            seconds += event.result.seconds
        elif isinstance(event, GradingFailed):
            seconds += event.seconds
    return seconds


def usual_s(run: RunDir, entries: Iterable[Entry]) -> float:
    """How long a grade of a submission takes: as the base model's on the same items, or as those before it."""
    baseline = run.read("baseline", BaselineRecord)
    if baseline is not None and baseline.graded_s is not None and baseline.total.total:
        items = baseline.public if run.spec.protocol == "strict" else baseline.total
        return baseline.graded_s * items.total / baseline.total.total
    known = [entry.event.result.seconds for entry in entries if isinstance(entry.event, Graded)]
    return sum(known) / len(known) if known else 0.0


def quota_in_words(run: RunDir) -> str:
    """For the agent."""
    spec = run.spec
    return f"{spec.submissions_quota} submissions and {format_duration(spec.grading_quota_s)} of grading"
