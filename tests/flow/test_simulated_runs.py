"""Many runs over three workers that are killed again and again, while every service is killed or restarted, too."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from a2rl.cluster.claims import NewRun
from a2rl.cluster.copies import ObjectStore
from a2rl.cluster.holding import Cluster
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.cluster.restore import bring_up_to_date
from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from flows.pipeline import a2rl
from flows.submission import reconcile, submit_runs
from tests.flow.simulated_worker import LEASE_S, POOL, STEPS, SUITE
from tests.run_maker import REPOSITORY, checkout, spec
from tests.services import Services, running

RUNS = int(os.environ.get("A2RL_SIMULATED_RUNS", "36"))
WAIT_S = float(os.environ.get("A2RL_SIMULATED_S", "900"))
WORKERS, OUTAGE_S, RECONCILE_S = 3, 15.0, 10.0
MOST_ATTEMPTS = 20
"""A lease of 8 seconds does not outlast the outages, so a run is taken more often than in earnest."""


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
        self.peak_mib = 0.0

    def keep_alive(self) -> None:
        for number, process in enumerate(self.processes):
            if process.poll() not in {None, 0}:
                self.processes[number] = self._start(number)
            elif psutil.pid_exists(process.pid):
                used = psutil.Process(process.pid).memory_info().rss
                self.peak_mib = max(self.peak_mib, used / 2**20)

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        log = Path(self._commands[number][3]).with_suffix(".log").open("ab")
        return subprocess.Popen(self._commands[number], cwd=REPOSITORY, env=self._environ, stdout=log, stderr=log)


class Suite:
    """Submitted runs, with what a user would leave running: workers, and a timer for the reconciler."""

    def __init__(self, folder: Path, services: Services) -> None:
        self.services = services
        claims = PostgresClaims(services.variables["A2RL_CLAIMS"], LEASE_S)
        self.cluster = Cluster(ObjectStore(services.variables["A2RL_STORE"]), claims)
        self.ids = [f"gsm8k-noop-{number:03}" for number in range(RUNS)]
        specs = [spec(run_id=run_id, suite=SUITE) for run_id in self.ids]
        submit_runs(specs, POOL, a2rl, Settings(folder, dict(os.environ)))
        self.workers = Workers(folder, services)

    def wait(self, seconds: float) -> None:
        """Waits, and does what the user's service manager and timer would."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.workers.keep_alive()
            time.sleep(0.2)

    def reconcile(self) -> None:
        """What the timer calls; a service may be down."""
        try:
            reconcile(self.cluster, SUITE, MOST_ATTEMPTS)
        except A2rlError as error:
            sys.stderr.write(f"{error}\n")

    def disturb(self, rng: random.Random) -> None:
        """Kills each worker and the Prefect server twice, Redis and the store once; Postgres is away twice."""
        acts = [f"worker {number}" for number in range(WORKERS)] * 2 + ["postgres", "prefect"] * 2 + ["redis", "s3"]
        rng.shuffle(acts)
        for act in acts:
            self.wait(rng.uniform(1.0, 3.0))
            if act.startswith("worker"):
                self.workers.processes[int(act.split()[1])].kill()
            elif act == "postgres":
                self.services.stop(act)
                self.wait(OUTAGE_S)
                self.services.start(act)
            else:
                self.services.kill(act)
                self.wait(5.0)
                self.services.start(act)

    def is_done(self) -> bool:
        """Whether all runs have ended."""
        return all(row.done for row in self.cluster.claims.rows(SUITE))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_all_runs_are_done_and_nothing_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running("postgres", "redis", "s3", "prefect") as services:
        for name, value in services.variables.items():
            monkeypatch.setenv(name, value)
        with temporary_settings({PREFECT_API_URL: services.variables["PREFECT_API_URL"]}):
            suite = Suite(tmp_path, services)
            began = time.monotonic()
            try:
                suite.disturb(random.Random(0))
                while not suite.is_done():
                    assert time.monotonic() - began < WAIT_S
                    suite.reconcile()
                    suite.wait(RECONCILE_S)
            finally:
                for process in suite.workers.processes:
                    process.kill()
            seconds = time.monotonic() - began
            check(suite.cluster, suite.ids, suite.workers.acknowledged, tmp_path / "check")
        epochs = sum(row.epoch for row in suite.cluster.claims.rows(SUITE)) - RUNS  # the check has taken each once
    sys.stderr.write(
        f"{RUNS} runs in {seconds:.0f} s, taken {epochs} times; a worker took up to {suite.workers.peak_mib:.0f} MiB\n"
    )


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
