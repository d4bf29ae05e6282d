"""What the claims say about a suite: how many runs are done, running, waiting or stuck, and what they have used."""

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from a2rl.cluster.claims import RunRow
from a2rl.run.records import VERDICTS, sum_known

BROKEN = "failed"
"""The verdict of a run without a result."""


class SuiteStatus(BaseModel):
    """The state of a suite at one moment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: int
    done: int
    """Runs with a result."""
    running: int
    waiting: int
    """Runs that nobody has begun."""
    stuck: int
    """Runs that were begun and that nobody works on now; the reconciler starts them again."""
    failed: int
    """Runs that were closed without a result."""
    failed_by_worker: dict[str, int]
    """Attempts that ended without a result, by machine."""
    budget_s: float
    used_s: float
    """The agents' time: what all runs have together, and what is used."""
    judge_usd: float
    agent_usd: float | None
    """None if that of a run is unknown."""
    left_s: float | None
    """About how long the rest takes; None if nothing is running."""
    oldest_beat_s: float | None
    """Seconds since the running process that was silent longest was heard; None if nothing is running."""

    @property
    def is_over(self) -> bool:
        """Whether all runs are closed."""
        return self.done + self.failed == self.runs


def state_of_row(row: RunRow) -> str:
    """Returns done, failed, running, waiting or stuck."""
    if row.done:
        return "done" if row.outcome in VERDICTS and row.outcome != BROKEN else "failed"
    if row.live:
        return "running"
    return "stuck" if row.epoch else "waiting"


def host_of(row: RunRow) -> str:
    """Returns the machine that last worked on a run; empty if none did."""
    return row.owner.partition(":")[0]


def status_of(rows: Iterable[RunRow]) -> SuiteStatus:
    """Returns the state of a suite."""
    rows = list(rows)
    states = Counter(state_of_row(row) for row in rows)
    live = [row for row in rows if row.live]
    beats = [row.beat_s for row in live if row.beat_s is not None]
    open_s = sum(max(0.0, row.progress.budget_s - row.progress.elapsed_s) for row in rows if not row.done)
    return SuiteStatus(
        runs=len(rows),
        done=states["done"],
        running=states["running"],
        waiting=states["waiting"],
        stuck=states["stuck"],
        failed=states["failed"],
        failed_by_worker=Counter(
            host_of(row) for row in rows if state_of_row(row) in {"failed", "stuck"} and row.owner
        ),
        budget_s=sum(row.progress.budget_s for row in rows),
        used_s=sum(row.progress.elapsed_s for row in rows),
        judge_usd=sum(row.progress.judge_usd for row in rows),
        agent_usd=sum_known(row.progress.agent_usd for row in rows),
        left_s=open_s / len(live) if live else None,
        oldest_beat_s=max(beats, default=None),
    )
