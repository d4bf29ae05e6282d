"""What the claims say about a suite: how many runs are done, running, waiting or stuck, and what they have used.

What is read of runs that other machines have worked on is fetched from the store.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from a2rl.cluster.claims import RunRow
from a2rl.cluster.copies import read_spec
from a2rl.cluster.holding import Cluster
from a2rl.cluster.restore import continues, fetch_results
from a2rl.core.files import StrictModel
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.records import VERDICTS, sum_known
from a2rl.run.spec import RunSpec

BROKEN = "failed"
"""The verdict of a run without a result."""
MOST = 50
"""So many waiting runs are looked at: a suite has few kinds of runs."""


class SuiteStatus(StrictModel):
    """The state of a suite at one moment."""

    runs: int
    done: int
    """Runs with a result."""
    running: int
    waiting: int
    """Runs that nobody has begun."""
    stuck: int
    """Runs that were begun and that nobody works on now; the reconciler starts those again that were submitted."""
    failed: int
    """Runs that were closed without a result, or before it could be judged."""
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


def state_of_row(row: RunRow) -> str:
    """Returns done, failed, running, waiting or stuck."""
    if row.done:
        return "done" if row.outcome in VERDICTS and row.outcome != BROKEN else "failed"
    if row.live:
        return "running"
    return "stuck" if row.attempts or not row.pool else "waiting"


def goes_on(row: RunRow) -> bool:
    """Returns whether somebody works on a run or will, without being asked: a run of no pool has no workers."""
    return not row.done and (row.live or bool(row.pool))


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
        budget_s=sum(row.progress.budget_s for row in rows),
        used_s=sum(row.progress.elapsed_s for row in rows),
        judge_usd=sum(row.progress.judge_usd for row in rows),
        agent_usd=sum_known(row.progress.agent_usd for row in rows),
        left_s=open_s / len(live) if live else None,
        oldest_beat_s=max(beats, default=None),
    )


def fetch_suites(names: Sequence[str], settings: Settings) -> list[RunDir]:
    """Fetches the runs of suites, launches or with run ids whose valid copy is another machine's.

    Returns:
        These runs, in `.fetched/`; none if no store is configured.

    Raises:
        InfrastructureError: The store or the claims failed.
    """
    if (cluster := Cluster.of(settings)) is None:
        return []
    rows = [row for row in cluster.claims.rows() if {row.suite, row.launch, row.run_id} & set(names) and row.manifest]
    elsewhere = [row for row in rows if not continues(RunDir(settings.runs / row.run_id), row.manifest)]
    return [fetch_results(settings.fetched, cluster.store, row.manifest) for row in elsewhere]


def submitted_runs(names: Sequence[str], settings: Settings) -> list[str]:
    """Returns the ids of the runs of suites, launches or with run ids that were submitted to several machines."""
    rows = cluster.claims.rows() if (cluster := Cluster.of(settings)) else []
    return [row.run_id for row in rows if {row.suite, row.launch, row.run_id} & set(names)]


def waiting_specs(cluster: Cluster, pool: str) -> list[RunSpec]:
    """Returns the settings of the first runs that wait in a pool."""
    waiting = [row for row in cluster.claims.rows() if row.pool == pool and not row.done and not row.live][:MOST]
    found = (read_spec(cluster.store, row.run_id) for row in waiting)
    return [spec for spec in found if spec is not None]
