"""The time refunded to an agent: time in which a submission waited for its grade and the agent did not compute.

Time is processed tick by tick. Idle time is kept for a while after it has passed, because a submission counts from when
it was received, which is known only once it has been copied and accepted.
"""

from collections.abc import Iterable

from a2rl.run.events import Graded, GradingFailed, SubmissionAccepted
from a2rl.run.ledger import Entry

LONGEST_COPY_S = 900.0


class Refund:
    """Adds up the refund. Call `tick` for each tick of an agent's time.

    Args:
        banked_s: The refund of earlier segments of the run, in seconds.
        earlier: The ledger's entries so far.
    """

    def __init__(self, banked_s: float, earlier: Iterable[Entry] = ()) -> None:
        self.seconds = banked_s
        self._idle: list[tuple[float, float]] = []
        self._waiting: dict[str, float] = {}
        self._graded: set[str] = set()
        self._follow_submissions(earlier)

    def tick(self, start_s: float, end_s: float, computed: bool, new: Iterable[Entry]) -> None:
        """Processes a tick.

        Args:
            start_s: Start of the tick, in seconds of the agent's time.
            end_s: End of the tick.
            computed: Whether the agent computed in it.
            new: The ledger's entries since the last tick.
        """
        if not computed and end_s > start_s:
            self._idle.append((start_s, end_s))
        for since_s, until_s in self._follow_submissions(new):
            self._refund_idle_time(since_s, min(until_s, end_s))
        if self._waiting:
            self._refund_idle_time(min(self._waiting.values()), end_s)
        self._idle = [each for each in self._idle if each[1] > end_s - LONGEST_COPY_S]

    def _follow_submissions(self, entries: Iterable[Entry]) -> list[tuple[float, float]]:
        """Keeps track of the submissions that wait, and returns the waits that have ended."""
        ended = []
        for event in (entry.event for entry in entries):
            if isinstance(event, SubmissionAccepted) and event.weights_digest not in self._graded:
                self._waiting.setdefault(event.weights_digest, event.elapsed_s)
            elif isinstance(event, Graded | GradingFailed):
                if isinstance(event, Graded):
                    self._graded.add(event.weights_digest)
                if (since_s := self._waiting.pop(event.weights_digest, None)) is not None:
                    ended.append((since_s, event.elapsed_s))
        return ended

    def _refund_idle_time(self, since_s: float, until_s: float) -> None:
        """Refunds the idle time between two moments and removes it, so that overlapping waits count once."""
        left: list[tuple[float, float]] = []
        for start_s, end_s in self._idle:
            first, last = max(start_s, since_s), min(end_s, until_s)
            if first >= last:
                left.append((start_s, end_s))
                continue
            self.seconds += last - first
            left += [part for part in ((start_s, first), (last, end_s)) if part[0] < part[1]]
        self._idle = left
