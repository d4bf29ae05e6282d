"""36 runs over three workers that are killed again and again, while Postgres and the store are restarted."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from a2rl.cluster.claims import NewRun
from a2rl.cluster.copies import write_spec
from a2rl.cluster.holding import Cluster
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.cluster.restore import bring_up_to_date
from a2rl.cluster.store import ObjectStore
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from tests.flow.simulated_worker import LEASE_S, STEPS
from tests.run_maker import REPOSITORY, checkout, spec
from tests.services import Services, let_others_in, running

RUNS = int(os.environ.get("A2RL_SIMULATED_RUNS", "36"))
WORKERS, OUTAGE_S, WAIT_S = 3, 15.0, 900


class Workers:
    """Three workers, each with a checkout of its own; one that has died is started again."""

    def __init__(self, folder: Path, services: Services) -> None:
        variables = services.variables
        self.acknowledged = folder / "acknowledged"
        self._environ = {**os.environ, **variables, "PYTHONPATH": str(REPOSITORY)}
        self._environ.pop("A2RL_ROOT", None)
        self._commands = []
        for number in range(WORKERS):
            place = folder / f"machine-{number}"
            place.mkdir()
            checkout(place)
            arguments = [str(place), variables["A2RL_STORE"], variables["A2RL_CLAIMS"], str(self.acknowledged)]
            self._commands.append([sys.executable, "-m", "tests.flow.simulated_worker", *arguments])
        self.processes = [self._start(number) for number in range(WORKERS)]

    def keep_alive(self) -> None:
        for number, process in enumerate(self.processes):
            if process.poll() not in {None, 0}:
                self.processes[number] = self._start(number)

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        log = Path(self._commands[number][3]).with_suffix(".log").open("ab")
        return subprocess.Popen(self._commands[number], cwd=REPOSITORY, env=self._environ, stdout=log, stderr=log)


def wait(workers: Workers, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        workers.keep_alive()
        time.sleep(0.2)


def disturb(workers: Workers, services: Services, rng: random.Random) -> None:
    """Kills each worker twice, and stops Postgres twice and the store once, in any order."""
    acts = [f"kill {number}" for number in range(WORKERS)] * 2 + ["postgres"] * 2 + ["s3"]
    rng.shuffle(acts)
    for act in acts:
        wait(workers, rng.uniform(1.0, 3.0))
        if act.startswith("kill"):
            workers.processes[int(act.split()[1])].kill()
            continue
        services.stop(act)
        wait(workers, OUTAGE_S if act == "postgres" else 5.0)
        services.start(act)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_runs_are_done_and_nothing_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_others_in(tmp_path)  # Postgres runs as another user
    with running(tmp_path / "services", "postgres", "s3") as services:
        for name, value in services.variables.items():
            monkeypatch.setenv(name, value)
        claims = PostgresClaims(services.variables["A2RL_CLAIMS"], LEASE_S)
        cluster = Cluster(ObjectStore(services.variables["A2RL_STORE"]), claims)
        ids = [f"gsm8k-noop-{number:03}" for number in range(RUNS)]
        for run_id in ids:
            write_spec(cluster.store, spec(run_id=run_id, suite="simulated"))
        claims.register([NewRun(run_id, "simulated", "", "") for run_id in ids])
        began = time.monotonic()
        workers = Workers(tmp_path, services)
        try:
            disturb(workers, services, random.Random(0))
            while not all(row.done for row in claims.rows("simulated")):
                assert time.monotonic() - began < WAIT_S
                wait(workers, 1.0)
        finally:
            for process in workers.processes:
                process.kill()
        seconds = time.monotonic() - began
        check(cluster, ids, workers.acknowledged, tmp_path / "check")
        epochs = sum(row.epoch for row in claims.rows("simulated"))
    sys.stderr.write(f"{RUNS} runs in {seconds:.0f} s, taken {epochs} times\n")


def check(cluster: Cluster, ids: list[str], acknowledged: Path, folder: Path) -> None:
    """Restores every run, and compares its ledger with what was acknowledged."""
    tokens = acknowledged.read_text().splitlines()
    assert len(tokens) == len(set(tokens))
    for run_id in ids:
        cluster.claims.reopen(run_id)
        claim = cluster.claims.take(NewRun(run_id, "", "", ""), "check:1:x")
        run = RunDir(folder / run_id)
        run.root.mkdir(parents=True)
        assert bring_up_to_date(run, cluster.store, claim) is not None
        run.ledger.verify()
        stages = [event.stage for event in run.ledger.events(RunInterrupted)]
        assert [int(stage.split()[1]) for stage in stages] == list(range(STEPS))
        assert {token for token in tokens if token.startswith(f"{run_id} ")} <= set(stages)
        assert {stage.split()[2] for stage in stages} <= {path.name for path in run.checkpoints.iterdir()}
