"""What a machine says about submitted runs that it cannot do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient

from a2rl.cluster.claims import RunRow
from a2rl.cluster.copies import write_spec
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.errors import NotReadyError
from a2rl.core.settings import Settings
from flows import submission
from flows.submission import PULL_STEPS, Decision, FlowState, decide, require_ready_here
from tests.run_maker import spec

RUN = spec(model="nothing", agent="noop", sandbox="none")


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Cluster:
    """A store with a run that this machine cannot do."""
    settings.environ["A2RL_STORE"] = f"file://{tmp_path}/store"
    cluster = Cluster.needed(settings)
    cluster.claims.register([new_run(RUN)])
    write_spec(cluster.store, RUN)
    return cluster


def row_of(cluster: Cluster) -> RunRow:
    row = cluster.claims.row(RUN.run_id)
    assert row is not None
    return row


def test_a_machine_that_cannot_do_a_run_says_what_is_missing(settings: Settings, cluster: Cluster) -> None:
    """It says so in its row."""
    with pytest.raises(NotReadyError) as refused:
        require_ready_here([RUN.run_id], settings)
    row = row_of(cluster)
    assert row.outcome == f"refused: {refused.value}"
    assert "took nothing: base model: " in row.outcome
    assert (row.epoch, row.done) == (0, False)


def test_a_reopened_run_waits_for_a_machine_that_can_do_it(
    settings: Settings, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(submission.MOST_ATTEMPTS):
        cluster.claims.release(cluster.claims.take(new_run(RUN), f"host:{number}:x"), "interrupted", done=False)
    assert cluster.claims.give_up(RUN.run_id, 1, "failed: given up")
    cluster.claims.reopen(RUN.run_id)
    cluster.claims.started(RUN.run_id, 2, "f")
    with pytest.raises(NotReadyError) as refused:
        require_ready_here([RUN.run_id], settings)
    over = FlowState("FAILED", 9999.0, str(refused.value))
    decision = decide(row_of(cluster), over)
    assert decision == Decision("again", over.message)
    for name in ("submit_attempt", "_end"):
        monkeypatch.setattr(submission, name, lambda *_: None)
    assert submission._act(cast(SyncPrefectClient, None), cluster, row_of(cluster), decision)
    cluster.claims.started(RUN.run_id, 3, "g")
    assert decide(row_of(cluster), FlowState("CRASHED", 1.0)).act == "again"  # the next worker died before it took it
    claim = cluster.claims.take(new_run(RUN), "host:9:x")
    cluster.claims.release(claim, "interrupted", done=False)
    assert decide(row_of(cluster), FlowState("CRASHED", 1.0)).act == "close"


PULL = """
import sys
from importlib import import_module
from pathlib import Path
from prefect.utilities.importtools import import_object
sys.path.insert(0, sys.argv[1])
from flows.submission import ENTRYPOINT, PULL_STEPS
sys.path.remove(sys.argv[1])
for name in [name for name in sys.modules if name.partition(".")[0] in {"flows", "stages", "tasks"}]:
    del sys.modules[name]
[[(name, values)]] = [step.items() for step in PULL_STEPS]
import_object(name)(**values)
assert Path.cwd() == Path(sys.argv[1])
assert Path(import_module(ENTRYPOINT.rpartition(".")[0]).__file__).is_relative_to(sys.argv[1])
"""


def test_a_worker_finds_the_checkout_of_make_deploy(repository: Path) -> None:
    assert yaml.safe_load((repository / "prefect.yaml").read_text(encoding="utf-8"))["pull"] == PULL_STEPS


@pytest.mark.heavy
@pytest.mark.parametrize("more", [{}, {"A2RL_ROOT": "/nowhere"}])
def test_a_worker_of_prefects_own_command_finds_the_checkout(
    tmp_path: Path, repository: Path, more: dict[str, str]
) -> None:
    environ = more | {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "-c", PULL, str(repository)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FAILS = """
from a2rl.core.errors import UsageError
from flows.submission import reason_in_workers_log
@reason_in_workers_log()
def flow():
    print("a line of a library", flush=True)
    raise UsageError("no key: set MY_KEY")
try:
    flow()
except UsageError:
    print("the engine goes on")
"""


@pytest.mark.parametrize(
    ("prefect", "stdout", "log"),
    [
        ({"PREFECT__RUNTIME__DEPLOYMENT__ID": "1"}, "", "gsm8k/1: no key: set MY_KEY\n"),
        ({}, "a line of a library\nthe engine goes on\n", ""),
    ],
)
def test_the_log_of_a_worker_says_only_why_a_flow_run_failed(
    repository: Path, prefect: dict[str, str], stdout: str, log: str
) -> None:
    environ = os.environ | prefect | {"PREFECT__RUNTIME__FLOW_RUN__NAME": "gsm8k/1"}
    command = [sys.executable, "-c", FAILS]
    done = subprocess.run(command, cwd=repository, env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (stdout, log)
