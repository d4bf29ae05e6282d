"""What a machine says about submitted runs that it cannot do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from a2rl.cluster.copies import write_spec
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.errors import NotReadyError
from a2rl.core.settings import Settings
from flows.submission import PULL_STEPS, require_ready_here
from tests.run_maker import spec


def test_a_machine_that_cannot_do_a_run_says_what_is_missing(settings: Settings, tmp_path: Path) -> None:
    """It says so in its row."""
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
