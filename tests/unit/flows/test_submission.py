"""What a machine says about submitted runs that it cannot do."""

from pathlib import Path

import pytest

from a2rl.cluster.copies import write_spec
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.errors import NotReadyError
from a2rl.core.settings import Settings
from flows.submission import require_ready_here
from tests.run_maker import spec


def test_a_machine_that_cannot_do_a_run_says_in_its_row_what_is_missing(settings: Settings, tmp_path: Path) -> None:
    settings.environ["A2RL_STORE"] = f"file://{tmp_path}/store"
    cluster = Cluster.needed(settings)
    run = spec(model="nothing", agent="noop", sandbox="none")
    cluster.claims.register([new_run(run)])
    write_spec(cluster.store, run)
    with pytest.raises(NotReadyError) as refused:
        require_ready_here([run.run_id], settings)
    row = cluster.claims.row(run.run_id)
    assert row is not None
    assert row.outcome == str(refused.value)
    assert "took nothing: base model: " in row.outcome
    assert (row.epoch, row.done) == (0, False)
