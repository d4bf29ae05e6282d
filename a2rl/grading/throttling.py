"""Keeps an agent from overloading the grader: a limit on the rate of requests (`TokenBucket`), and of very many refused
ones, one event per interval is recorded (`Refusals`)."""

import threading
import time
from collections.abc import Callable

from a2rl.run.events import SubmissionRefused
from a2rl.run.ledger import Ledger

BURST = 20
"""This many refusals in a row are recorded one by one. No honest agent is refused as often within minutes."""
INTERVAL_S = 60.0
"""After that, one event is recorded per interval."""
MAX_PATH, MAX_REASON = 500, 1000
"""The number of characters of an agent's text that are kept."""


def bounded(text: str, limit: int) -> str:
    """Returns an agent's text, shortened to a limit and with only characters that can be encoded."""
    return text[:limit].encode("utf-8", "backslashreplace").decode("utf-8")


class TokenBucket:
    """A rate limit: a number of tokens at once, and then one per interval."""

    def __init__(self, burst: float, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._every_s, self._now = burst, every_s, now
        self._left, self._since = burst, now()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Takes a token; False if there is none at the moment."""
        return self.reserve(0.0) is not None

    def reserve(self, longest_s: float) -> float | None:
        """Takes a token, or reserves a future one.

        Returns:
            The seconds until the token is available; None if they would be more than `longest_s`.
        """
        with self._lock:
            now = self._now()
            self._left = min(self._burst, self._left + (now - self._since) / self._every_s)
            self._since = now
            wait_s = max(0.0, (1 - self._left) * self._every_s)
            if wait_s > longest_s:
                return None
            self._left -= 1
            return wait_s


class Refusals:
    """Records in the ledger the requests that were refused before they were received. Thread-safe."""

    def __init__(self, ledger: Ledger, now: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._bucket = TokenBucket(BURST, INTERVAL_S, now)
        self._lock = threading.Lock()
        self._last: SubmissionRefused | None = None
        self._count = 0

    def note(self, elapsed_s: float, model_path: str, reason: str) -> None:
        """Records a refusal, or counts it for the next event."""
        event = SubmissionRefused(
            elapsed_s=elapsed_s, model_path=bounded(model_path, MAX_PATH), reason=bounded(reason, MAX_REASON)
        )
        with self._lock:
            self._last, self._count = event, self._count + 1
        if self._bucket.take():
            self.flush()

    def flush(self, *, only_if_due: bool = False) -> None:
        """Records the refusals that were only counted so far.

        Args:
            only_if_due: Whether to record them only if the rate limit allows an event now.
        """
        with self._lock:
            event, count = self._last, self._count
            if event is None or (only_if_due and not self._bucket.take()):
                return
            self._last, self._count = None, 0
        self._ledger.append(event.model_copy(update={"count": count}))
