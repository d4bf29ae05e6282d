"""The grading quota of a run: a number of submissions, and seconds of grading time."""

from collections.abc import Iterable
from typing import NamedTuple

from a2rl.grading.submission_states import open_receipts, ungraded
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, GradingFailed, SubmissionAccepted
from a2rl.run.ledger import Entry
from a2rl.run.records import BaselineRecord


class QuotaLeft(NamedTuple):
    """What is left of the quota."""

    submissions: int
    seconds: float
    """Seconds of grading. Negative if the last grade began while time was left but took longer."""

    @property
    def spent(self) -> str:
        """The part of the quota that is used up; empty if none is."""
        if self.submissions <= 0:
            return "submissions"
        return "grading time" if self.seconds <= 0 else ""


def quota_left(run: RunDir, entries: Iterable[Entry]) -> QuotaLeft:
    """Returns what is left of the quota of a run with these entries in its ledger.

    Submissions that are being copied count as accepted. The usual grading time is charged for each submission that
    waits for a grade, so that many simultaneous submissions cannot exceed the quota.
    """
    entries, spec = list(entries), run.spec
    under_way = len(open_receipts(entries))
    accepted = sum(isinstance(entry.event, SubmissionAccepted) for entry in entries)
    expected_s = (under_way + len(ungraded(entries))) * usual_s(run, entries)
    return QuotaLeft(
        submissions=max(0, spec.submissions_quota - accepted - under_way),
        seconds=spec.grading_quota_s - graded_s(entries) - expected_s,
    )


def graded_s(entries: Iterable[Entry]) -> float:
    """Returns the seconds of grading that a run's submissions have used, including failed grades."""
    seconds = 0.0
    for event in (entry.event for entry in entries):
        if isinstance(event, Graded):
            seconds += event.result.seconds
        elif isinstance(event, GradingFailed):
            seconds += event.seconds
    return seconds


def usual_s(run: RunDir, entries: Iterable[Entry]) -> float:
    """Estimates the seconds of grading per submission: from the base model's grade, or from earlier submissions."""
    baseline = run.read("baseline", BaselineRecord)
    if baseline is not None and baseline.graded_s is not None and baseline.total.total:
        items = baseline.public if run.spec.protocol == "strict" else baseline.total
        return baseline.graded_s * items.total / baseline.total.total
    known = [entry.event.result.seconds for entry in entries if isinstance(entry.event, Graded)]
    return sum(known) / len(known) if known else 0.0


def quota_in_words(run: RunDir) -> str:
    """Describes the quota for the agent."""
    spec = run.spec
    return f"{spec.submissions_quota} submissions and {format_duration(spec.grading_quota_s)} of grading"
