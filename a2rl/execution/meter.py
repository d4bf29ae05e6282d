"""The time meter of a running agent: how much time is left, including refunds.

`left_s` only uses figures in memory, so that the deadline is never delayed by a disk that the agent keeps busy, or by a
ledger or a process table that it has made long. `update` does the slow work; it is called in another thread.

Both are called about twice a second. If neither was called for `STANDSTILL_S`, the pipeline stood still, as when a
virtual machine is paused. This time is not the agent's if the agent stood still too.
"""

import time
from collections.abc import Callable

from a2rl.execution.compute import IDLE_SHARE, Load, Sample, computed
from a2rl.execution.refund import Refund
from a2rl.run.budget import refund_s
from a2rl.run.directory import RunDir

STANDSTILL_S = 10.0


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
        self._stood_still_s = self._state.stood_still_s
        self._seen_at, self._gap_s = self._began, 0.0
        self._last: tuple[float, Sample] | None = None

    def left_s(self) -> float:
        """Returns the seconds until this attempt must end, without delay.

        A standstill is not counted until `update` has found whether the agent computed in it.
        """
        self._notice_gap()
        more_s = self._refunded_s + self._stood_still_s + self._gap_s
        return self._allowed_s + more_s - (self._now() - self._began)

    def update(self) -> None:
        """Processes what has happened since the last call and saves the time; call it about twice a second.

        Raises:
            A2rlError: The ledger or the clock file cannot be used; the next call catches up.
        """
        self._notice_gap()
        before, self._last = self._last, self._sample()
        gap_s, self._gap_s = self._gap_s, 0.0
        new = self._run.ledger.entries(after=self._last_entry)
        if before is not None and self._last is not None:
            start_s, end_s = before[0], self._last[0]
            stood_still = gap_s > 0 and self._last[1].cpu_s - before[1].cpu_s < IDLE_SHARE * gap_s
            self._stood_still_s += gap_s if stood_still else 0.0
            did_compute = stood_still or computed(before[1], self._last[1], end_s - start_s)  # it is given back once
            self._refund.tick(start_s, end_s, did_compute, new)
        else:
            at_s = self._elapsed()
            self._refund.tick(at_s, at_s, True, new)
        self._last_entry = new[-1].seq if new else self._last_entry
        self._refunded_s = refund_s(self._state.model_copy(update={"refunded_s": self._refund.seconds}))
        self._run.clock.heartbeat(self._refund.seconds, self._stood_still_s)

    def _notice_gap(self) -> None:
        now = self._now()
        if (gap_s := now - self._seen_at) > STANDSTILL_S:
            self._gap_s += gap_s
        self._seen_at = now

    def _elapsed(self) -> float:
        return self._elapsed_s + self._now() - self._began

    def _sample(self) -> tuple[float, Sample] | None:
        """Takes a sample; None if that is impossible, in which case the agent may be computing."""
        try:
            return self._elapsed(), self._load.sample()
        except (OSError, ValueError):
            return None
