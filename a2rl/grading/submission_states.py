"""What follows from the entries of a run's ledger: the states of submissions, the quota, and what need not be kept.

A submission is received, then refused or accepted; accepted, then graded. Every submission ends in exactly one of these
states. A request that was too late or named no folder is refused without having been received. A submission that could
not be graded ends with a grade without a score.

The quota of a run is a number of submissions, and seconds of grading time.

The setting `keep` says which checkpoints are removed; the ledger has an event for each. A checkpoint is needed until it
is graded. `keep: best` then keeps the best so far. `keep: none` keeps it only until the checks of the stage `validity`
have looked at its weights. What could not be graded is kept, so that one can see why.
"""

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.events import (
    AgentEnded,
    AgentStarted,
    CheckpointPruned,
    Event,
    Graded,
    GradingFailed,
    SubmissionAccepted,
    SubmissionReceived,
    SubmissionRefused,
    ValidityDecided,
)
from a2rl.run.ledger import Entry, events_of, grades_among
from a2rl.run.ranking import best_among
from a2rl.run.records import BaselineRecord
from a2rl.run.spec import RunSpec


def crash_mark(run: RunDir, receipt: int | str) -> Path:
    """Returns the file that counts the attempts to copy a submission."""
    return run.checkpoints / f".attempts-{receipt}"


def forget_crashes(run: RunDir) -> None:
    """Removes the counts of an earlier pipeline, whose service may have been stopped in the middle of a copy."""
    for mark in run.checkpoints.glob(crash_mark(run, "*").name):
        mark.unlink(missing_ok=True)


def is_agent_at_work(entries: Iterable[Entry]) -> bool:
    """Says whether an attempt was started and has not ended."""
    kinds = Counter(type(entry.event) for entry in entries)
    return kinds[AgentStarted] > kinds[AgentEnded]


def open_receipts(entries: Sequence[Entry]) -> list[SubmissionReceived]:
    """Returns the submissions that were received and are neither refused nor accepted yet, in order."""
    ended = {event.receipt for event in events_of(entries, SubmissionRefused)}
    ended |= {event.receipt for event in events_of(entries, SubmissionAccepted)}
    return [event for event in events_of(entries, SubmissionReceived) if event.receipt not in ended]


def ungraded(entries: Sequence[Entry]) -> dict[str, SubmissionAccepted]:
    """Returns the first submission of each accepted checkpoint without a grade, by the digest of the weights."""
    grades, waiting = grades_among(entries), dict[str, SubmissionAccepted]()
    for event in events_of(entries, SubmissionAccepted):
        if event.weights_digest not in grades:
            waiting.setdefault(event.weights_digest, event)
    return waiting


def invalid_transition(entries: Sequence[Entry], finished: bool) -> str:
    """Returns the first invalid change of a submission's state in a ledger; empty if all are valid.

    Args:
        finished: Whether the agent's part is over, so that every submission must be refused or graded.
    """
    states = _States()
    for event in (entry.event for entry in entries):
        if problem := states.apply(event):
            return problem
    if finished and (left := open_receipts(entries)):
        return f"receipt {left[0].receipt} ({left[0].model_path}) was neither accepted nor refused"
    if finished and (waiting := ungraded(entries)):
        return f"submission {next(iter(waiting.values())).submission_id} was accepted and has no grade"
    return ""


class _States:
    """Applies the events of a ledger one by one and finds the first that is not allowed."""

    def __init__(self) -> None:
        self._at_work = 0
        self._received: set[int] = set()
        self._ended: set[int] = set()
        self._accepted = 0
        self._checkpoints: set[str] = set()
        self._graded: set[str] = set()

    def apply(self, event: Event) -> str:
        """Applies an event; returns what is wrong with it, empty if nothing is."""
        if isinstance(event, AgentStarted | AgentEnded):
            self._at_work += 1 if isinstance(event, AgentStarted) else -1
            return ""
        if isinstance(event, SubmissionReceived):
            return self._receive(event.receipt)
        if isinstance(event, SubmissionRefused):
            return self._end(event.receipt)
        if isinstance(event, SubmissionAccepted):
            return self._accept(event)
        return self._grade(event) if isinstance(event, Graded | GradingFailed) else ""

    def _receive(self, receipt: int) -> str:
        if self._at_work < 1:
            return f"receipt {receipt} was given while no agent was at work"
        if receipt != len(self._received) + 1:
            return f"receipt {receipt} is out of order"
        self._received.add(receipt)
        return ""

    def _end(self, receipt: int | None) -> str:
        if receipt is None:
            return ""
        if receipt not in self._received:
            return f"receipt {receipt} was never given"
        if receipt in self._ended:
            return f"receipt {receipt} ended twice"
        self._ended.add(receipt)
        return ""

    def _accept(self, event: SubmissionAccepted) -> str:
        self._accepted += 1
        if event.submission_id != self._accepted:
            return f"submission {event.submission_id} is out of order"
        self._checkpoints.add(event.weights_digest)
        return self._end(event.receipt)

    def _grade(self, event: Graded | GradingFailed) -> str:
        if event.weights_digest not in self._checkpoints:
            return "a grade belongs to no submission"
        if isinstance(event, Graded):
            if event.weights_digest in self._graded:
                return "a checkpoint was graded twice"
            self._graded.add(event.weights_digest)
        return ""


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


def quota_left(run: RunDir, entries: Sequence[Entry]) -> QuotaLeft:
    """Returns what is left of the quota of a run with these entries in its ledger.

    Submissions that are being copied count as accepted. The usual grading time is charged for each submission that
    waits for a grade, so that many simultaneous submissions cannot exceed the quota.
    """
    spec, under_way = run.spec, len(open_receipts(entries))
    accepted = len(events_of(entries, SubmissionAccepted))
    expected_s = (under_way + len(ungraded(entries))) * usual_s(run, entries)
    return QuotaLeft(
        submissions=max(0, spec.submissions_quota - accepted - under_way),
        seconds=spec.grading_quota_s - graded_s(entries) - expected_s,
    )


def graded_s(entries: Sequence[Entry]) -> float:
    """Returns the seconds of grading that a run's submissions have used, including failed grades."""
    seconds = sum(event.result.seconds for event in events_of(entries, Graded))
    return seconds + sum(event.seconds for event in events_of(entries, GradingFailed))


def usual_s(run: RunDir, entries: Sequence[Entry]) -> float:
    """Estimates the seconds of grading per submission: from the base model's grade, or from earlier submissions."""
    baseline = run.read("baseline", BaselineRecord)
    if baseline is not None and baseline.graded_s is not None and baseline.total.total:
        items = baseline.public if run.spec.protocol == "strict" else baseline.total
        return baseline.graded_s * items.total / baseline.total.total
    known = [event.result.seconds for event in events_of(entries, Graded)]
    return sum(known) / len(known) if known else 0.0


def quota_in_words(spec: RunSpec) -> str:
    """Describes the quota for the agent."""
    return f"{spec.submissions_quota} submissions and {format_duration(spec.grading_quota_s)} of grading"


PREFIX = ".pruned-"


def pruned(entries: Sequence[Entry]) -> set[str]:
    """Returns the digests of the checkpoints that were removed."""
    return {event.weights_digest for event in events_of(entries, CheckpointPruned)}


def unneeded(spec: RunSpec, entries: Sequence[Entry]) -> list[str]:
    """Returns the digests of the checkpoints that can be removed now, in the order of their submission.

    While the result is open, its checkpoint is needed with every setting.
    """
    if spec.keep == "all":
        return []
    is_open = not events_of(entries, ValidityDecided)
    grades, gone, waiting = grades_among(entries), pruned(entries), ungraded(entries)
    best = best_among(entries)
    kept = {best.submission.weights_digest} if best and (spec.keep == "best" or is_open) else set()
    accepted = [event.weights_digest for event in events_of(entries, SubmissionAccepted)]
    return [
        digest
        for digest in dict.fromkeys(accepted)
        if digest not in kept | gone | waiting.keys() and grades[digest].result.score is not None
    ]


def mark_unneeded(run: RunDir) -> None:
    """Records which checkpoints are removed, and takes them out of their place; `sweep` removes them.

    What is not needed once is never needed again, so others may write to the ledger meanwhile.
    """
    for digest in unneeded(run.spec, run.ledger.entries()):
        run.ledger.append(CheckpointPruned(weights_digest=digest))
    for digest in pruned(run.ledger.entries()):
        if (folder := run.checkpoint(digest)).exists():
            folder.rename(folder.with_name(f"{PREFIX}{folder.name}"))


def sweep(run: RunDir) -> None:
    """Removes what was taken out of its place."""
    for folder in run.checkpoints.glob(f"{PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def prune(run: RunDir) -> None:
    """Removes all checkpoints that are no longer needed, while no grading service is running."""
    mark_unneeded(run)
    sweep(run)


def invalid_pruning(spec: RunSpec, entries: Sequence[Entry]) -> str:
    """Returns the first removal of a checkpoint that was still needed; empty if there is none."""
    for number, entry in enumerate(entries):
        event = entry.event
        if isinstance(event, CheckpointPruned) and event.weights_digest not in unneeded(spec, entries[:number]):
            return f"entry {entry.seq} removes a checkpoint that the run still needed, or that was not there"
    return ""
