"""Two checkouts that share a store, as two machines would: what is done to them, and to their processes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from a2rl.cluster.claims import RunRow
from a2rl.cluster.holding import Cluster
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from tests.flow.checkout import Checkout
from tests.services import running

SUBMISSIONS = 4
WAIT_S = 600


class Machines(NamedTuple):
    """Two checkouts and the variables of what they share."""

    variables: dict[str, str]
    one: Checkout
    two: Checkout

    @classmethod
    def make(cls, folder: Path, variables: dict[str, str]) -> "Machines":
        """Makes two checkouts with a task `steady` and an agent that submits every three seconds."""
        shared = {name: text for name, text in variables.items() if not name.startswith("MLFLOW_")}
        one = Checkout(folder / "one", {"steady": ""})
        one.variables = shared
        agent = one.submitter(SUBMISSIONS).with_name("agent.py")
        agent.write_text(agent.read_text().replace("    print(insist", "    time.sleep(3)\n    print(insist"))
        return cls(shared, one, one.copy_to(folder / "two"))

    def submit(self, pool: str, *seeds: int, options: Sequence[str] = ()) -> list[str]:
        """Submits a run for each seed from the first checkout; returns their ids."""
        command = ["bench", "smoke", "--task", "steady", "--agent", self.agent, "--budget", "5m", "--pool", pool]
        for seed in seeds:
            command += ["--seed", str(seed)]
        before = {row.run_id for row in self.cluster.claims.rows()}
        done = self.one.run(*command, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return [row.run_id for row in self.cluster.claims.rows() if row.run_id not in before]

    @property
    def cluster(self) -> Cluster:
        """The claims and the store, as a command sees them."""
        return Cluster.needed(Settings(self.one.root, self.variables))

    @property
    def agent(self) -> str:
        """The start script of the agent."""
        return str(self.one.root / "scripts" / "submitter" / "start.sh")

    def row(self, run_id: str) -> RunRow:
        """What the claims know about a run."""
        row = self.cluster.claims.row(run_id)
        assert row is not None
        return row

    def stored_submissions(self, run_id: str) -> int:
        """How many submissions of a run are in the store."""
        row = self.cluster.claims.row(run_id)
        return row.progress.submissions if row else 0


@contextmanager
def machines_with_services(folder: Path) -> Iterator[Machines]:
    """Starts Postgres, Redis, an S3 server and Prefect, and makes two checkouts that share them."""
    with running("postgres", "redis", "s3", "prefect") as services, pytest.MonkeyPatch.context() as patch:
        for name, value in services.variables.items():
            if name.startswith("AWS_"):  # botocore reads the environment of this process
                patch.setenv(name, value)
        yield Machines.make(folder, services.variables)


def only_run(checkout: Checkout) -> RunDir:
    """Waits for the first run of a checkout."""
    runs = checkout.root / "runs"
    wait_for("a run", lambda: list(RunDir.all(runs)))
    [run] = RunDir.all(runs)
    return run


def processes_of(checkout: Checkout) -> list[psutil.Process]:
    """Returns all processes of a checkout: its worker, the engine of its flow run, the services and the agent."""
    root, found = str(checkout.root), []
    for process in psutil.process_iter():
        try:
            where = f"{process.cwd()} {' '.join(process.cmdline())} {process.environ().get('A2RL_ROOT', '')}"
        except psutil.Error:
            continue
        if f"{root}/" in where or where.endswith(root):
            found.append(process)
    return found


def kill_machine(checkout: Checkout) -> None:
    """Kills all processes of a checkout, as a power cut would."""
    while alive := [each for each in processes_of(checkout) if is_alive(each)]:
        for process in alive:
            try:
                process.kill()
            except psutil.Error:
                continue
        time.sleep(0.2)


def start_and_kill(machines: Machines, submissions: int, budget: str = "5m") -> RunDir:
    """Starts a run in the first checkout, and kills all of its processes in the middle of its agent's work."""
    command = machines.one.start("run", "--task", "steady", "--agent", machines.agent, "--budget", budget)
    try:
        run = only_run(machines.one)
        wait_for("stored submissions", lambda: machines.stored_submissions(run.id) >= submissions)
    finally:
        kill_machine(machines.one)
        command.communicate()
    return run


def wait_for(what: str, is_so: Callable[[], object], timeout_s: float = WAIT_S) -> float:
    """Waits; returns for how long, in seconds."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.5)
    return time.monotonic() - began


def is_alive(process: psutil.Process) -> bool:
    """Says whether a process runs."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
