"""The runs of a suite that other machines have worked on: what a report reads of them is fetched from the store."""

from collections.abc import Sequence

from a2rl.cluster.holding import Cluster
from a2rl.cluster.restore import continues, fetch_results
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir


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
