"""The meter of an agent at work: how much of its time is left, and what of it is given back.

`left_s` is arithmetic on figures in memory, so that whoever watches the deadline never waits: not for a disk that the
agent keeps busy, nor for a ledger or a process table that it has made long. `look` does what takes time, elsewhere.
"""

import time
from collections.abc import Callable

from a2rl.budget import refund_s
from a2rl.load import Load, Sample, computed
from a2rl.refund import Refund
from a2rl.run import RunDir


class Meter:
    """One attempt's, from when the run's clock was started.

    Args:
        run: its clock runs.
        load: tells whether the agent computes.
        reserved_s: what the run has left when this attempt must end.
        now: a clock that never goes back, in seconds.
    """

    def __init__(
        self, run: RunDir, load: Load, reserved_s: float = 0.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._run, self._load, self._now = run, load, now
        self._state = run.clock.state
        entries = run.ledger.entries()
        self._last_entry = entries[-1].seq if entries else 0
        self._refund = Refund(self._state.refunded_s, entries)
        self._began, self._elapsed_s = now(), run.clock.elapsed_s()
        self._allowed_s = self._state.budget_s - self._elapsed_s - reserved_s
        self._refunded_s = refund_s(self._state)
        self._last: tuple[float, Sample] | None = None

    def left_s(self) -> float:
        """Seconds until this attempt must end; returns at once."""
        return self._allowed_s + self._refunded_s - (self._now() - self._began)

    def look(self) -> None:
        """Takes up what has happened since the last look, and banks the time; to be called about twice a second.

        Raises:
            A2rlError: the ledger or the clock's file cannot be used; nothing is lost, the next look makes up for it.
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
        """None where nothing can be seen: the agent may be computing then."""
        try:
            return self._elapsed(), self._load.sample()
        except (OSError, ValueError):
            return None
