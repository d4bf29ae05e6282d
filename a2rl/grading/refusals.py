"""Refusals at the door: the first ones are written down one by one, of a flood one event now and then."""

import threading
import time
from collections.abc import Callable

from a2rl.events import SubmissionRefused
from a2rl.ledger import Ledger

BURST = 20
"""So many in a row are written down each. No honest agent is refused as often within minutes."""
EVERY_S = 60.0
"""Beyond that, one event in so many seconds."""
MAX_PATH, MAX_REASON = 500, 1000
"""Characters of what an agent wrote, or caused to be written, that are kept."""


def bounded(text: str, limit: int) -> str:
    """Text of an agent as it is kept: so long at most, and of characters that can be written down."""
    return text[:limit].encode("utf-8", "backslashreplace").decode("utf-8")


class Allowance:
    """A token bucket: a burst, and then one thing in so many seconds."""

    def __init__(self, burst: float, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._every_s, self._now = burst, every_s, now
        self._left, self._since = burst, now()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Uses one up; False: there is none left just now."""
        with self._lock:
            self._refill()
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def reserve(self, longest_s: float) -> float | None:
        """Uses one up, if need be one that is yet to come; the seconds until then, None if they are more than that."""
        with self._lock:
            self._refill()
            wait_s = max(0.0, (1 - self._left) * self._every_s)
            if wait_s > longest_s:
                return None
            self._left -= 1
            return wait_s

    def _refill(self) -> None:
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._since) / self._every_s)
        self._since = now


class Refusals:
    """What is turned away at the door, in the ledger. Safe to call from several threads."""

    def __init__(self, ledger: Ledger, now: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._allowance = Allowance(BURST, EVERY_S, now)
        self._lock = threading.Lock()
        self._last: SubmissionRefused | None = None
        self._count = 0

    def note(self, elapsed_s: float, model_path: str, reason: str) -> None:
        """Writes it down, or counts it for the next event."""
        event = SubmissionRefused(
            elapsed_s=elapsed_s, model_path=bounded(model_path, MAX_PATH), reason=bounded(reason, MAX_REASON)
        )
        with self._lock:
            self._last, self._count = event, self._count + 1
        if self._allowance.take():
            self.flush()

    def flush(self, *, only_if_due: bool = False) -> None:
        """Writes down what was only counted so far.

        Args:
            only_if_due: not sooner than an event may be written again.
        """
        with self._lock:
            event, count = self._last, self._count
            if event is None or (only_if_due and not self._allowance.take()):
                return
            self._last, self._count = None, 0
        self._ledger.append(event.model_copy(update={"count": count}))
