"""Runs that other machines have worked on, or will: what is read of them is fetched from the store."""

from collections.abc import Sequence

from a2rl.cluster.copies import read_spec
from a2rl.cluster.holding import Cluster
from a2rl.cluster.restore import continues, fetch_results
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSpec

MOST = 50
"""So many waiting runs are looked at: a suite has few kinds of runs."""


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


def submitted_runs(name: str, settings: Settings) -> int:
    """Returns how many runs of a suite or launch, or with this run id, were submitted to several machines."""
    cluster = Cluster.of(settings)
    return sum(name in {row.suite, row.launch, row.run_id} for row in cluster.claims.rows()) if cluster else 0


def waiting_specs(cluster: Cluster, pool: str) -> list[RunSpec]:
    """Returns the settings of the first runs that wait in a pool."""
    waiting = [row for row in cluster.claims.rows() if row.pool == pool and not row.done and not row.live][:MOST]
    found = (read_spec(cluster.store, row.run_id) for row in waiting)
    return [spec for spec in found if spec is not None]
