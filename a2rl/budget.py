"""The budget: one deadline, one monotonic clock, owned outside the agent.

The clock runs while the agent runs and stands still otherwise; it goes on where it stood when a run is resumed. Its
state is one small file in the run directory, out of the agent's reach, so that the grading service and the stage
that runs the agent read the same clock.

Under the strict protocol the time in which the agent waits for a grade, and does not compute meanwhile, is given back
(a2rl/refund.py measures it). Waits that overlap count once, and what is given back is limited.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from a2rl.errors import InfrastructureError, UsageError
from a2rl.events import Graded, GradingFailed, SubmissionAccepted
from a2rl.files import read_model, write_model
from a2rl.ledger import Entry

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
REFUND_LIMIT = 0.5
"""Share of the budget that waiting for grades may add to it."""
LOCK_TIMEOUT_S = 10


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 90s, 12h, 1h30m or 1.5h.

    Raises:
        UsageError: it is not one, or not positive.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text.strip() or not 0 < seconds < math.inf:
        raise UsageError(f"{text!r} is not a duration: write for example 90s, 30m, 12h or 1h30m")
    return seconds


def format_duration(seconds: float) -> str:
    """90 -> 1m30s; 3600 -> 1h."""
    left = round(seconds)
    text = ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        amount, left = divmod(left, size)
        text += f"{amount}{unit}" if amount else ""
    return text + (f"{left}s" if left or not text else "")


class ClockState(BaseModel):
    """The clock file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget_s: float
    refunds: bool
    consumed_s: float = 0.0
    """What the segments before this one used, or up to the last heartbeat if the clock runs."""
    refunded_s: float = 0.0
    """Time of waiting for grades in which the agent did not compute; how much of it counts is limited."""
    running_since: float | None = None
    """CLOCK_MONOTONIC at the last heartbeat of this segment; None while the clock stands still."""
    boot: str = ""
    """Which boot of which machine that clock belongs to."""
    beat_at: float = 0.0
    """Wall-clock time of the last heartbeat, for when the machine was restarted since."""
    started_at: float | None = None
    """Wall-clock time of the first start, for people to read."""


def this_boot() -> str:
    """A name for the time since this machine was started, as other processes on it see it, too."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class Clock:
    """Reads and drives the clock file. One process drives it (execute); others only read.

    It counts by CLOCK_MONOTONIC, which stands still while the machine is suspended: nothing computes then.
    """

    path: Path
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    boot: Callable[[], str] = this_boot

    @property
    def state(self) -> ClockState:
        return read_model(self.path, ClockState)

    def create(self, budget_s: float, refunds: bool) -> None:
        """Sets the clock to zero, once."""
        with self._changing():
            if not self.path.exists():
                write_model(self.path, ClockState(budget_s=budget_s, refunds=refunds))

    def start(self) -> None:
        """Begins a segment. One that nobody has ended is ended at its last heartbeat: see `make_up` for the rest."""
        with self._changing():
            started_at = self.state.started_at or self.wall()
            self._write(self.state.consumed_s, self.monotonic(), started_at=started_at)

    def heartbeat(self, refunded_s: float | None = None) -> None:
        """Banks what has been used and refunded so far, so that a crash loses at most the time since."""
        with self._changing():
            if self.state.running_since is not None:
                refund = {} if refunded_s is None else {"refunded_s": refunded_s}
                self._write(self.elapsed_s(), self.monotonic(), **refund)

    def stop(self) -> None:
        """Ends the segment."""
        with self._changing():
            self._write(self.elapsed_s(), None)

    def make_up(self, still_ran: bool, last_change_at: float) -> None:
        """Ends a segment whose owner died, and charges the time since in which the agent's processes ran on.

        At most the time that has really passed is charged.

        Args:
            still_ran: whether some were found alive just now: then they ran all the time.
            last_change_at: wall-clock time of the last sign of life that they left, if none were.
        """
        with self._changing():
            state = self.state
            if state.running_since is None:
                return
            same_boot = state.boot == self.boot()
            passed_s = self.monotonic() - state.running_since if same_boot else self.wall() - state.beat_at
            ran_s = passed_s if still_ran else min(passed_s, last_change_at - state.beat_at)
            known = max(0.0, ran_s) if state.boot else 0.0  # a clock of an older version does not say when it last ran
            self._write(state.consumed_s + known, None)

    def elapsed_s(self) -> float:
        """Seconds of agent time so far, over all segments."""
        state = self.state
        if state.running_since is None or state.boot != self.boot():
            return state.consumed_s
        return state.consumed_s + self.monotonic() - state.running_since

    def remaining_s(self) -> float:
        """Seconds left until the deadline, what was refunded for waiting included. Negative once it has passed."""
        state = self.state
        return state.budget_s + refund_s(state) - self.elapsed_s()

    def _write(self, consumed_s: float, running_since: float | None, **more: float) -> None:
        changes = {
            "consumed_s": consumed_s,
            "running_since": running_since,
            "boot": self.boot(),
            "beat_at": self.wall(),
        }
        write_model(self.path, self.state.model_copy(update={**changes, **more}))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One at a time reads, changes and writes the file, whichever thread or process it is."""
        try:
            with FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout as error:
            raise InfrastructureError(f"{self.path} is locked by another process; end it and resume") from error


def refund_s(state: ClockState) -> float:
    """Seconds that are given back for waiting."""
    return min(state.refunded_s, REFUND_LIMIT * state.budget_s) if state.refunds else 0.0


def waited_s(entries: Iterable[Entry], now_s: float) -> float:
    """Seconds up to `now_s` in which at least one accepted submission waited for its grade, whatever the agent did."""
    accepted: list[SubmissionAccepted] = []
    graded: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry.event, SubmissionAccepted):
            accepted.append(entry.event)
        elif isinstance(entry.event, Graded | GradingFailed):
            graded.setdefault(entry.event.weights_digest, entry.event.elapsed_s)
    waits = sorted((event.elapsed_s, min(now_s, graded.get(event.weights_digest, now_s))) for event in accepted)
    total, covered_until = 0.0, 0.0
    for start, end in waits:
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total
