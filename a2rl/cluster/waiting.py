"""What waits in a pool for a worker."""

from a2rl.cluster.copies import read_spec
from a2rl.cluster.holding import Cluster
from a2rl.run.spec import RunSpec

MOST = 50
"""So many waiting runs are looked at: a suite has few kinds of runs."""


def waiting_specs(cluster: Cluster, pool: str) -> list[RunSpec]:
    """Returns the settings of the first runs that wait in a pool."""
    waiting = [row for row in cluster.claims.rows() if row.pool == pool and not row.done and not row.live][:MOST]
    found = (read_spec(cluster.store, row.run_id) for row in waiting)
    return [spec for spec in found if spec is not None]
