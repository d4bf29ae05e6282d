"""The deadline of an agent: the time that is left, with refunds (`RemainingTime`), and the loop that ends it (`watch`).

`RemainingTime.left_s` only uses figures in memory, so that the deadline is never delayed by a disk that the agent keeps
busy, or by a ledger or a process table that it has made long. `RemainingTime.update` does the slow work; it is called
in another thread. Both are called about twice a second. If neither was called for `STANDSTILL_S`, the pipeline stood
still, as when a virtual machine is paused. This time is not the agent's if the agent stood still too.

Time is refunded in which a submission waited for its grade and the agent did not compute (`Refund`). It is processed
tick by tick. Idle time is kept for a while after it has passed, because a submission counts from when it was received,
which is known only once it has been copied and accepted.
"""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from a2rl.core.processes import check_stop
from a2rl.execution.compute import IDLE_SHARE, Load, Sample, computed
from a2rl.run.budget import Waits, refund_s
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Entry
from a2rl.sandbox.command import AgentExit

LONGEST_COPY_S = 900.0
STANDSTILL_S = 10.0
TICK_S = 0.5
SHUTDOWN_S = 0.5
"""A machine that shuts down ends all processes at once, so they learn of it within this time."""


class Refund:
    """Adds up the refund. Call `tick` for each tick of an agent's time.

    Args:
        banked_s: The refund of earlier segments of the run, in seconds.
        earlier: The ledger's entries so far.
    """

    def __init__(self, banked_s: float, earlier: Iterable[Entry] = ()) -> None:
        self.seconds = banked_s
        self._idle: list[tuple[float, float]] = []
        self._waits = Waits()
        self._waits.follow(earlier)

    def tick(self, start_s: float, end_s: float, computed: bool, new: Iterable[Entry]) -> None:
        """Processes a tick.

        Args:
            start_s: Start of the tick, in seconds of the agent's time.
            computed: Whether the agent computed in it.
            new: The ledger's entries since the last tick.
        """
        if not computed and end_s > start_s:
            self._idle.append((start_s, end_s))
        for since_s, until_s in self._waits.follow(new):
            self._refund_idle_time(since_s, min(until_s, end_s))
        if self._waits.since_s:
            self._refund_idle_time(min(self._waits.since_s.values()), end_s)
        self._idle = [each for each in self._idle if each[1] > end_s - LONGEST_COPY_S]

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


class RemainingTime:
    """The time that is left to one attempt, from when the run's clock was started.

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
        new = self._run.ledger.entries(after=self._last_entry)  # comes first, as it may take long or fail
        before, self._last, gap_s = self._last, self._sample(), self._gap_s
        if before is not None and self._last is not None:
            start_s, end_s = before[0], self._last[0]
            stood_still = gap_s > 0 and self._last[1].cpu_s - before[1].cpu_s < IDLE_SHARE * gap_s
            self._stood_still_s += gap_s if stood_still else 0.0
            did_compute = stood_still or computed(before[1], self._last[1], end_s - start_s)  # it is given back once
            self._refund.tick(start_s, end_s, did_compute, new)
        else:
            at_s = self._elapsed()
            self._refund.tick(at_s, at_s, True, new)
        self._gap_s -= gap_s
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


class RunningAgent(Protocol):
    """A running agent."""

    def wait(self, timeout_s: float) -> AgentExit | None:
        """Waits for the agent's end; None if it is still running after the timeout."""

    def stop(self) -> AgentExit:
        """Ends the agent."""


class WatchResult(NamedTuple):
    """How an agent's work ended."""

    reason: str
    """finished, crashed, deadline or quota."""
    exited: AgentExit


def heed_shutdown() -> None:
    """Raises InterruptedByUserError if the agent has ended because the machine shuts down: this process, too, must then
    stop, and the run is continued later."""
    time.sleep(SHUTDOWN_S)
    check_stop()


def watch(
    agent: RunningAgent, left_s: Callable[[], float], is_spent: Callable[[], bool], on_tick: Callable[[], None]
) -> WatchResult:
    """Waits until the agent ends, and ends it at its deadline or when a limit is reached.

    Args:
        left_s: Returns the seconds until the deadline, without delay.
        is_spent: Returns whether a limit is reached, without delay.
        on_tick: Called in each iteration, to check on other processes. It must return soon.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: The supervisor, or a service that the agent needs, has failed for good.
    """
    while True:
        check_stop()
        if (left := left_s()) <= 0:
            return WatchResult("deadline", agent.stop())
        if is_spent():
            return WatchResult("quota", agent.stop())
        if (ended := agent.wait(min(TICK_S, left))) is not None:
            if is_spent():  # it ended because it was refused what it asked for, however it put that
                return WatchResult("quota", ended)
            return WatchResult("finished" if ended.exit_code == 0 else "crashed", ended)
        on_tick()
