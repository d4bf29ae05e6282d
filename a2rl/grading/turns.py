"""The order in which received submissions are worked on: a few at a time, by their receipts."""

import threading
import time
from collections.abc import Callable

POLL_INTERVAL_S = 0.1


class Turns:
    """Gives turns to receipts; thread-safe. A receipt is a number, and smaller ones come first."""

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        """Starts without receipts.

        Args:
            most: The number of receipts that have their turn at the same time.
            now: The clock of the pauses.
        """
        self._most, self._now = most, now
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._taken: set[int] = set()
        self._paused_until = 0.0

    @property
    def are_paused(self) -> bool:
        """Whether no turns are given now."""
        return self._now() < self._paused_until

    def pause(self, seconds: float) -> None:
        """Gives no turns for a while."""
        self._paused_until = self._now() + seconds

    def take(self, receipt: int) -> None:
        """Returns when it is the receipt's turn."""
        with self._changed:
            self._waiting.add(receipt)
            while not self._is_next(receipt):
                self._changed.wait(POLL_INTERVAL_S if self.are_paused else None)
            self._waiting.discard(receipt)
            self._taken.add(receipt)
            self._changed.notify_all()

    def end(self, receipt: int) -> None:
        """Ends the turn of a receipt."""
        with self._changed:
            self._taken.discard(receipt)
            self._changed.notify_all()

    def _is_next(self, receipt: int) -> bool:
        return len(self._taken) < self._most and not self.are_paused and receipt == min(self._waiting)
