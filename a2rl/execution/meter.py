"""The time meter of a running agent: how much time is left, including refunds.

`left_s` only uses figures in memory, so that the deadline is never delayed by a disk that the agent keeps busy, or by a
ledger or a process table that it has made long. `update` does the slow work; it is called in another thread.
"""

import time
from collections.abc import Callable

from a2rl.execution.compute import Load, Sample, computed
from a2rl.execution.refund import Refund
from a2rl.run.budget import refund_s
from a2rl.run.directory import RunDir


class Meter:
    """Meters one attempt, from when the run's clock was started.

    Args:
        run: A run whose clock is running.
        load: Measures whether the agent computes.
        reserved_s: The time that must be left of the run's budget when this attempt ends.
        now: A monotonic clock, in seconds.
    """

    def __init__(
        self, run: RunDir, load: Load, reserved_s: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._run, self._load, self._now = run, load, now
        self._state = run.clock.read_state()
        entries = run.ledger.entries()
        self._last_entry = entries[-1].seq if entries else 0
        self._refund = Refund(self._state.refunded_s, entries)
        self._began, self._elapsed_s = now(), run.clock.elapsed_s()
        self._allowed_s = self._state.budget_s - self._elapsed_s - reserved_s
        self._refunded_s = refund_s(self._state)
        self._last: tuple[float, Sample] | None = None

    def left_s(self) -> float:
        """Returns the seconds until this attempt must end, without delay."""
        return self._allowed_s + self._refunded_s - (self._now() - self._began)

    def update(self) -> None:
        """Processes what has happened since the last call and saves the time; call it about twice a second.

        Raises:
            A2rlError: The ledger or the clock file cannot be used; the next call catches up.
        """
        before, self._last = self._last, self._sample()
        new = self._run.ledger.entries(after=self._last_entry)
        if before is not None and self._last is not None:
            start_s, end_s = before[0], self._last[0]
            self._refund.tick(start_s, end_s, computed(before[1], self._last[1], end_s - start_s), new)
        else:
            at_s = self._elapsed()
            self._refund.tick(at_s, at_s, True, new)
        self._last_entry = new[-1].seq if new else self._last_entry
        self._refunded_s = refund_s(self._state.model_copy(update={"refunded_s": self._refund.seconds}))
        self._run.clock.heartbeat(self._refund.seconds)

    def _elapsed(self) -> float:
        return self._elapsed_s + self._now() - self._began

    def _sample(self) -> tuple[float, Sample] | None:
        """Takes a sample; None if that is impossible, in which case the agent may be computing."""
        try:
            return self._elapsed(), self._load.sample()
        except (OSError, ValueError):
            return None
