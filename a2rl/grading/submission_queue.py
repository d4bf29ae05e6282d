"""The submissions on which the grading service works, each from its receipt to its grade or its refusal.

A few have their turn at a time, in the order of their receipts. Of these, one at a time is copied: two copies would
each count on the same free disk space. Refused submissions cost work as well, so after many of them no turns are given
for a while.

    pending = queue.add(received)
    queue.wait_for_turn(pending)
    with queue.copying(pending):
        ...
    queue.end(pending, Outcome(accepted, grade))
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from a2rl.run.events import Graded, SubmissionAccepted, SubmissionReceived
from a2rl.run.rules import MAX_WAITING

MISTAKES, LONGEST_PAUSE_S = 20, 60.0
"""After this many refused copies, each further one delays all submissions. The delay in seconds is a tenth of the
number of refused copies, up to the longest pause. The reason is that each refused copy costs the grader some work and
two events."""
REFUSED_S = 600.0
"""The seconds that refused submissions may take in all. After that, each one delays all submissions by as long as it
took, up to the longest pause, so that they take at most half of the grader's time."""
POLL_INTERVAL_S = 0.1

Stage = Literal["received", "waiting", "admitted", "copying", "accepted"]
"""In order: it has its receipt; it waits for its turn; it has its turn, and waits until no other is copied; it is
copied or checked; it waits for its grade."""


class Outcome(NamedTuple):
    """A submission that was accepted, and the grade of its checkpoint."""

    accepted: SubmissionAccepted
    grade: Graded


@dataclass(eq=False)
class PendingSubmission:
    """A submission that the service works on."""

    received: SubmissionReceived
    stage: Stage = "received"
    outcome: "Future[Outcome]" = field(default_factory=Future)
    """What requests wait for. It always completes; its error says why there is no grade, or none for now."""


class SubmissionQueue:
    """The pending submissions of a run, by receipt. One lock guards all of it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Starts without submissions; `now` is the clock of the pauses."""
        self._now = now
        self._changed = threading.Condition()
        self._pending: dict[int, PendingSubmission] = {}
        self._is_copying = False
        self._paused_until = 0.0
        self._mistakes, self._refused_s = 0, 0.0

    @property
    def has_room(self) -> bool:
        """Whether another submission would have its turn at once."""
        return len(self._pending) < MAX_WAITING and not self._is_paused

    def receipts(self, stage: Stage | None = None) -> frozenset[int]:
        """Returns the receipts of all pending submissions, or of those in one stage."""
        with self._changed:
            return frozenset(key for key, each in self._pending.items() if stage in (None, each.stage))

    def add(self, received: SubmissionReceived) -> PendingSubmission:
        """Adds a submission, or returns it if it is pending already."""
        with self._changed:
            return self._pending.setdefault(received.receipt, PendingSubmission(received))

    def begin(self, pending: PendingSubmission) -> bool:
        """Lets a submission wait for its turn; False if somebody has begun with it before."""
        with self._changed:
            if pending.stage != "received":
                return False
            pending.stage = "waiting"
            return True

    def wait_for_turn(self, pending: PendingSubmission) -> None:
        """Returns when it is the submission's turn."""
        with self._changed:
            pending.stage = "waiting"
            while not self._is_next(pending):
                self._changed.wait(POLL_INTERVAL_S if self._is_paused else None)
            self._move(pending, "admitted")

    @contextmanager
    def copying(self, pending: PendingSubmission) -> Iterator[None]:
        """Waits until no other submission takes disk space, and keeps others from it in this context."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_copying)
            self._is_copying = True
            self._move(pending, "copying")
        try:
            yield
        finally:
            with self._changed:
                self._is_copying = False
                self._changed.notify_all()

    def accept(self, pending: PendingSubmission) -> None:
        """Notes that a submission is in the ledger as accepted, and waits only for its grade."""
        with self._changed:
            self._move(pending, "accepted")

    def end(self, pending: PendingSubmission, ending: Outcome | BaseException) -> None:
        """Removes a submission, which makes room for another, and tells its end to the requests that wait for it."""
        with self._changed:
            self._pending.pop(pending.received.receipt, None)
            self._changed.notify_all()
        if isinstance(ending, BaseException):
            pending.outcome.set_exception(ending)
        else:
            pending.outcome.set_result(ending)

    def note_mistake(self, seconds: float) -> None:
        """Notes a submission that took this long and was refused. After too many, no turns are given for a while."""
        with self._changed:
            self._mistakes, self._refused_s = self._mistakes + 1, self._refused_s + seconds
            pause_s = self._mistakes / 10 if self._mistakes > MISTAKES else 0.0
            pause_s += seconds if self._refused_s > REFUSED_S else 0.0
            if pause_s:
                self._paused_until = self._now() + min(LONGEST_PAUSE_S, pause_s)

    def end_pause(self) -> None:
        """Gives turns again."""
        self._paused_until = 0.0

    @property
    def _is_paused(self) -> bool:
        return self._now() < self._paused_until

    def _move(self, pending: PendingSubmission, stage: Stage) -> None:
        pending.stage = stage
        self._changed.notify_all()

    def _is_next(self, pending: PendingSubmission) -> bool:
        stages = {key: each.stage for key, each in self._pending.items()}
        first = min(key for key, stage in stages.items() if stage == "waiting")
        admitted = sum(stage not in ("received", "waiting") for stage in stages.values())
        return admitted < MAX_WAITING and not self._is_paused and pending.received.receipt == first
