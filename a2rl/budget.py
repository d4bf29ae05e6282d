"""The budget: one deadline, one monotonic clock, owned outside the agent.

The clock runs while the agent runs and stands still otherwise; it goes on where it stood when a run is resumed. Its
state is one small file in the run directory, out of the agent's reach, so that the grading service and the stage
that runs the agent read the same clock.

Under the strict protocol the time in which the agent waits for a grade is given back. Waits that overlap count
once, and what is given back is limited, or an agent could submit without end to train for free.
"""

import math
import re
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from a2rl.errors import UsageError
from a2rl.events import Graded, GradingFailed, SubmissionAccepted
from a2rl.files import read_model, write_model
from a2rl.ledger import Entry

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
REFUND_LIMIT = 0.5
"""Share of the budget that waiting for grades may add to it."""


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
    """What the segments before this one used, or up to the last heartbeat if the clock does not run."""
    running_since: float | None = None
    """CLOCK_MONOTONIC at the start of this segment; None while the clock stands still."""
    started_at: float | None = None
    """Wall-clock time of the first start, for people to read."""


class Clock:
    """Reads and drives the clock file. One process drives it (execute); others only read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def state(self) -> ClockState:
        return read_model(self.path, ClockState)

    def create(self, budget_s: float, refunds: bool) -> None:
        """Sets the clock to zero, once."""
        if not self.path.exists():
            write_model(self.path, ClockState(budget_s=budget_s, refunds=refunds))

    def start(self) -> None:
        """Begins a segment; after a crash the clock first falls back to its last heartbeat."""
        state = self.state
        write_model(
            self.path,
            state.model_copy(update={"running_since": time.monotonic(), "started_at": state.started_at or time.time()}),
        )

    def heartbeat(self) -> None:
        """Banks what has been used so far, so that a crash loses at most the time since."""
        state = self.state
        if state.running_since is not None:
            now = time.monotonic()
            used = state.consumed_s + now - state.running_since
            write_model(self.path, state.model_copy(update={"consumed_s": used, "running_since": now}))

    def stop(self) -> None:
        """Ends the segment."""
        self.heartbeat()
        write_model(self.path, self.state.model_copy(update={"running_since": None}))

    def abandon(self) -> None:
        """Ends a segment whose owner died: the time since the last heartbeat is unknown and is not charged."""
        write_model(self.path, self.state.model_copy(update={"running_since": None}))

    def elapsed_s(self) -> float:
        """Seconds of agent time so far, over all segments."""
        state = self.state
        if state.running_since is None:
            return state.consumed_s
        return state.consumed_s + time.monotonic() - state.running_since

    def remaining_s(self, entries: Iterable[Entry]) -> float:
        """Seconds left until the deadline, what was refunded for waiting included. Negative once it has passed."""
        state, now = self.state, self.elapsed_s()
        refund = min(waited_s(entries, now), REFUND_LIMIT * state.budget_s) if state.refunds else 0.0
        return state.budget_s + refund - now


def waited_s(entries: Iterable[Entry], now_s: float) -> float:
    """Seconds up to `now_s` in which at least one accepted submission waited for its grade."""
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
