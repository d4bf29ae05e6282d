"""The time budget of a run: one deadline, measured by one monotonic clock outside the agent's reach.

The clock runs while the agent runs and is stopped otherwise; a resumed run continues from where it stopped. Its state
is one small file in the run directory, so that the grading service and the stage that runs the agent read the same
clock.

Under the strict protocol, time in which the agent waits for a grade without computing is refunded
(a2rl/execution/deadline.py measures it). Overlapping waits count once, and the refund is limited.
"""

import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel, read_model, write_model
from a2rl.core.locks import file_lock
from a2rl.run.events import AgentStarted, Graded, GradingFailed, SubmissionAccepted
from a2rl.run.ledger import Entry

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
REFUND_LIMIT = 0.5
"""The refund for waiting is at most this share of the budget."""
LOCK_TIMEOUT_S = 10


def parse_duration(text: str) -> float:
    """Parses a duration such as 90s, 12h, 1h30m or 1.5h.

    Returns:
        The duration in seconds.

    Raises:
        UsageError: The text is not a duration, or the duration is not positive.
    """
    parts = re.findall(r"(?<!\d)(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text.strip() or not 0 < seconds < math.inf:
        raise UsageError(f"{text!r} is not a duration: write for example 90s, 30m, 12h or 1h30m")
    return seconds


def format_duration(seconds: float) -> str:
    """Formats seconds for people: 90 -> 1m30s, 3600 -> 1h."""
    left = round(seconds)
    text = ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        amount, left = divmod(left, size)
        text += f"{amount}{unit}" if amount else ""
    return text + (f"{left}s" if left or not text else "")


class ClockState(StrictModel):
    """The content of the clock file."""

    budget_s: float
    refunds: bool
    consumed_s: float = 0.0
    """Seconds of agent time used so far. While the clock runs, the value is that of the last heartbeat."""
    refunded_s: float = 0.0
    """Time in which the agent waited for grades without computing; `refund_s` limits how much of it counts."""
    stood_still_s: float = 0.0
    """Time in which the pipeline and the agent stood still, such as in a paused virtual machine. All of it is given
    back."""
    running_since: float | None = None
    """The value of CLOCK_MONOTONIC at the last heartbeat of this segment; None while the clock is stopped."""
    boot: str = ""
    """Identifies the boot of the machine that this monotonic time belongs to."""
    beat_at: float = 0.0
    """Wall-clock time of the last heartbeat (Unix seconds); used if the machine has been restarted since."""
    started_at: float | None = None
    """Wall-clock time of the first start (Unix seconds)."""


def this_boot() -> str:
    """Returns an identifier of the current boot, the same for all processes on this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class Clock:
    """Reads and updates the clock file. Only the `execute` stage updates it; other processes only read.

    It uses CLOCK_MONOTONIC, which does not advance while the machine is suspended, because nothing can compute then.
    """

    path: Path
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    boot: Callable[[], str] = this_boot

    def read_state(self) -> ClockState:
        """Reads the clock file."""
        return read_model(self.path, ClockState)

    def create(self, budget_s: float, refunds: bool) -> None:
        """Creates the clock file with zero time used; an existing file is left as it is."""
        with self._locked():
            if not self.path.exists():
                write_model(self.path, ClockState(budget_s=budget_s, refunds=refunds))

    def start(self) -> None:
        """Starts a segment. A previous segment that was never stopped counts up to its last heartbeat.

        Call `close_lost_segment` first to charge the time after that heartbeat.
        """
        with self._locked():
            state = self.read_state()
            self._write(state.consumed_s, self.monotonic(), started_at=state.started_at or self.wall())

    def heartbeat(self, refunded_s: float | None = None, stood_still_s: float | None = None) -> None:
        """Saves the time used and given back so far, so that a crash loses at most the time since the last call."""
        with self._locked():
            if self.read_state().running_since is not None:
                given_back = {"refunded_s": refunded_s, "stood_still_s": stood_still_s}
                known = {name: value for name, value in given_back.items() if value is not None}
                self._write(self.elapsed_s(), self.monotonic(), **known)

    def stop(self) -> None:
        """Stops the clock and ends the segment."""
        with self._locked():
            self._write(self.elapsed_s(), None)

    def close_lost_segment(self, still_ran: bool, last_change_at: float) -> None:
        """Ends a segment whose owner died, and charges the time for which the agent's processes continued to run.

        At most the time that has really passed is charged.

        Args:
            still_ran: Whether some of the processes are still alive; then all of the time is charged.
            last_change_at: Wall-clock time of the last change that they left behind; used if none is alive.
        """
        with self._locked():
            state = self.read_state()
            if state.running_since is None:
                return
            same_boot = state.boot == self.boot()
            passed_s = self.monotonic() - state.running_since if same_boot else self.wall() - state.beat_at
            ran_s = passed_s if still_ran else min(passed_s, last_change_at - state.beat_at)
            self._write(state.consumed_s + max(0.0, ran_s), None)

    def stop_as_restored(self, at_least_s: float) -> None:
        """Ends the segment of a clock that was copied from another machine, which no longer works on the run.

        Args:
            at_least_s: The time used, as the other machine last reported it; it may be newer than the copied file.
        """
        with self._locked():
            self._write(max(self.read_state().consumed_s, at_least_s), None)

    def elapsed_s(self) -> float:
        """Returns the seconds of agent time so far, over all segments."""
        state = self.read_state()
        if state.running_since is None or state.boot != self.boot():
            return state.consumed_s
        return state.consumed_s + self.monotonic() - state.running_since

    def used_s(self) -> float:
        """Returns the seconds in the file; 0 without one. If the pipeline was killed, `elapsed_s` runs on."""
        return self.read_state().consumed_s if self.path.exists() else 0.0

    def allowed_s(self) -> float:
        """Returns the seconds that the agent has in all: the budget, and the time that was given back."""
        state = self.read_state()
        return state.budget_s + refund_s(state) + state.stood_still_s

    def remaining_s(self) -> float:
        """Returns the seconds until the deadline, including the time that was given back; negative after it."""
        return self.allowed_s() - self.elapsed_s()

    def _write(self, consumed_s: float, running_since: float | None, **more: float) -> None:
        changes = {
            "consumed_s": consumed_s,
            "running_since": running_since,
            "boot": self.boot(),
            "beat_at": self.wall(),
        }
        write_model(self.path, self.read_state().model_copy(update={**changes, **more}))

    def _locked(self) -> AbstractContextManager[None]:
        """Lets one thread of one process at a time read, change and write the file."""
        path, meanwhile = self.path.with_name(f".{self.path.name}.lock"), f"another process changes {self.path}"
        return file_lock(path, meanwhile, LOCK_TIMEOUT_S, heeds_stop=False)


def refund_s(state: ClockState) -> float:
    """Returns the seconds that are refunded for waiting, limited to `REFUND_LIMIT` of the budget."""
    return min(state.refunded_s, REFUND_LIMIT * state.budget_s) if state.refunds else 0.0


class Waits:
    """Follows in the ledger which submissions wait for their grades."""

    def __init__(self) -> None:
        self.since_s: dict[str, float] = {}
        """When those that wait now were submitted, by the digest of the weights."""
        self._graded: set[str] = set()

    def follow(self, entries: Iterable[Entry]) -> list[tuple[float, float]]:
        """Takes new entries; returns the beginning and the end of each wait that these end, by a grade or failure."""
        ended = []
        for event in (entry.event for entry in entries):
            if isinstance(event, SubmissionAccepted) and event.weights_digest not in self._graded:
                self.since_s.setdefault(event.weights_digest, event.elapsed_s)
            elif isinstance(event, Graded | GradingFailed):
                if isinstance(event, Graded):
                    self._graded.add(event.weights_digest)
                if (since_s := self.since_s.pop(event.weights_digest, None)) is not None:
                    ended.append((since_s, event.elapsed_s))
        return ended


def waited_s(entries: Iterable[Entry], now_s: float) -> float:
    """Returns for how many seconds up to `now_s` at least one accepted submission waited for its grade.

    Overlapping waits count once. It does not matter whether the agent computed meanwhile.
    """
    waits = Waits()
    ended = waits.follow(entries)
    total, covered_until = 0.0, 0.0
    for start, end in sorted([*ended, *((since, now_s) for since in waits.since_s.values())]):
        total += max(0.0, min(end, now_s) - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total


class BudgetClock:
    """Converts times into seconds of the run's budget clock."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._starts = [(each.at, each.event.elapsed_s) for each in entries if isinstance(each.event, AgentStarted)]

    def elapsed_s(self, at: float | None) -> float | None:
        """Returns the seconds of the budget clock.

        Args:
            at: Seconds since 1970.

        Returns:
            None if there is no time, or if it is before the agent's start.
        """
        if at is None:
            return None
        started = [(began, elapsed) for began, elapsed in self._starts if began <= at + 1]
        return max(0.0, started[-1][1] + at - started[-1][0]) if started else None
