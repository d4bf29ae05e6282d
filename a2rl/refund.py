"""What is given back to an agent: the time in which a submission of its waited for a grade and it did not compute.

Time is taken tick by tick. What an agent did while a submission was being copied is kept for a while, as a submission
counts from when it was handed in, which is known only once it has been accepted.
"""

from collections.abc import Iterable

from a2rl.events import Graded, GradingFailed, SubmissionAccepted
from a2rl.ledger import Entry

LONGEST_COPY_S = 900.0


class Refund:
    """Counts; fed with what happened in each tick of an agent's time.

    Args:
        banked_s: what earlier segments of the run were given back.
        earlier: the ledger's entries so far.
    """

    def __init__(self, banked_s: float, earlier: Iterable[Entry] = ()) -> None:
        self.seconds = banked_s
        self._idle: list[tuple[float, float]] = []
        self._waiting: dict[str, float] = {}
        self._graded: set[str] = set()
        self._learn(earlier)

    def tick(self, start_s: float, end_s: float, computed: bool, new: Iterable[Entry]) -> None:
        """Takes up a tick, in seconds of the agent's time.

        Args:
            computed: whether the agent did.
            new: the ledger's entries since the last tick.
        """
        if not computed and end_s > start_s:
            self._idle.append((start_s, end_s))
        for since_s, until_s in self._learn(new):
            self._give_back(since_s, min(until_s, end_s))
        if self._waiting:
            self._give_back(min(self._waiting.values()), end_s)
        self._idle = [each for each in self._idle if each[1] > end_s - LONGEST_COPY_S]

    def _learn(self, entries: Iterable[Entry]) -> list[tuple[float, float]]:
        """Follows which submissions wait, and returns the waits that have ended."""
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

    def _give_back(self, since_s: float, until_s: float) -> None:
        """Gives back the idle time between two moments, which is used up with that: waits that overlap count once."""
        left: list[tuple[float, float]] = []
        for start_s, end_s in self._idle:
            first, last = max(start_s, since_s), min(end_s, until_s)
            if first >= last:
                left.append((start_s, end_s))
                continue
            self.seconds += last - first
            left += [part for part in ((start_s, first), (last, end_s)) if part[0] < part[1]]
        self._idle = left
