"""Runs on several checkouts with real Postgres, Redis, S3 and Prefect servers. Slow: they take minutes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil
import pytest

from a2rl.cluster.claims import RunRow
from a2rl.cluster.copies import write_spec
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, Graded, SubmissionAccepted
from tests.flow.checkout import Checkout
from tests.run_maker import spec
from tests.services import Services, let_others_in, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
ROUNDS = int(os.environ.get("A2RL_ROUNDS", "5"))
POOL = "tests"
SUBMISSIONS = 4
WAIT_S = 600
TAKE_AND_APPEND = """
import sys, time
from pathlib import Path
from a2rl.cluster.holding import held
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
settings = Settings.load(Path(sys.argv[1]))
run = RunDir(settings.runs / sys.argv[2])
import psycopg, s3fs                 # loaded before the race begins
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
try:
    with held(run, settings):
        run.ledger.append(RunInterrupted(stage=sys.argv[3]))
        print("won", time.monotonic() - began, flush=True)
        sys.stdin.readline()
except UsageError:
    print("refused", time.monotonic() - began, flush=True)
"""


class Machines(NamedTuple):
    """Two checkouts that share services, as two machines would."""

    services: Services
    one: Checkout
    two: Checkout

    @property
    def cluster(self) -> Cluster:
        return Cluster.needed(Settings(self.one.root, self.services.variables))

    def environment(self, checkout: Checkout) -> dict[str, str]:
        ours = {"A2RL_ROOT": str(checkout.root), "PYTHONPATH": str(checkout.root), "MLFLOW_TRACKING_URI": ""}
        return {**os.environ, **self.services.variables, **ours}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    let_others_in(folder)  # Postgres runs as another user
    with running(folder / "services", "postgres", "redis", "s3", "prefect") as services:
        one = Checkout(folder / "one", {"steady": ""})
        agent = one.submitter(SUBMISSIONS).with_name("agent.py")
        agent.write_text(agent.read_text().replace("    print(insist", "    time.sleep(3)\n    print(insist"))
        shutil.copytree(one.root, folder / "two", symlinks=True)
        two = object.__new__(Checkout)
        two.root, two._items = folder / "two", one._items
        with pytest.MonkeyPatch.context() as patch:
            for name, value in services.variables.items():
                if name.startswith("AWS_"):  # botocore reads the environment of this process
                    patch.setenv(name, value)
            yield Machines(services, one, two)


def racer(machines: Machines, checkout: Checkout, run_id: str, name: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_AND_APPEND, str(checkout.root), run_id, name],
        env=machines.environment(checkout),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    return process


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_of_two_simultaneous_resumes_one_wins_and_the_other_refuses(machines: Machines) -> None:
    run_id, slowest = "gsm8k-race-1", 0.0
    raced = spec(run_id=run_id)
    cluster = machines.cluster
    write_spec(cluster.store, raced)
    cluster.claims.register([new_run(raced)])
    for number in range(ROUNDS):
        places = (machines.one, machines.one) if number % 2 else (machines.one, machines.two)
        racers = [racer(machines, place, run_id, f"round {number} {side}") for side, place in enumerate(places)]
        for process in racers:
            tell(process)
        results = {}
        for process in racers:
            assert process.stdout is not None
            word, seconds = process.stdout.readline().split()
            results[word] = float(seconds)
        assert set(results) == {"won", "refused"}
        slowest = max(slowest, results["refused"])
        for process in racers:
            process.communicate("\n", timeout=60)
    row = cluster.claims.row(run_id)
    assert row is not None
    assert (row.epoch, row.seq) == (ROUNDS, ROUNDS)
    assert slowest < 20.0  # 2 s on a machine that does nothing else
    sys.stderr.write(f"{ROUNDS} rounds; the slowest refusal took {slowest:.2f} s\n")


def submit(machines: Machines, *seeds: int) -> list[str]:
    agent = str(machines.one.root / "scripts" / "submitter" / "start.sh")
    command = ["bench", "smoke", "--task", "steady", "--agent", agent, "--budget", "5m", "--pool", POOL]
    for seed in seeds:
        command += ["--seed", str(seed)]
    before = {row.run_id for row in machines.cluster.claims.rows()}
    command_line(machines, *command)
    return [row.run_id for row in machines.cluster.claims.rows() if row.run_id not in before]


def command_line(machines: Machines, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "a2rl", *arguments],
        cwd=machines.one.root,
        env=machines.environment(machines.one),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def start_worker(machines: Machines, checkout: Checkout) -> "subprocess.Popen[bytes]":
    with (checkout.root / "worker.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "a2rl", "suite", "worker", POOL],
            cwd=checkout.root,
            env=machines.environment(checkout),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


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
    while alive := [each for each in processes_of(checkout) if each.status() != psutil.STATUS_ZOMBIE]:
        for process in alive:
            try:
                process.kill()
            except psutil.Error:
                continue
        time.sleep(0.2)


def wait_for(what: str, is_so: Callable[[], object], timeout_s: float = WAIT_S) -> float:
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.5)
    return time.monotonic() - began


def row_of(machines: Machines, run_id: str) -> RunRow:
    row = machines.cluster.claims.row(run_id)
    assert row is not None
    return row


def test_a_run_of_a_killed_machine_is_taken_over_within_three_minutes(machines: Machines) -> None:
    try:
        start_worker(machines, machines.one)
        [run_id] = submit(machines, 0)
        run = RunDir(machines.one.root / "runs" / run_id)
        wait_for("two grades", lambda: run.ledger.path.exists() and len(run.ledger.events(Graded)) >= 2)
        wait_for("two stored grades", lambda: row_of(machines, run_id).progress.submissions >= 2)
        stored = row_of(machines, run_id)
        kill_machine(machines.one)
        used_s, killed_at = run.clock.read_state().consumed_s, time.monotonic()
        start_worker(machines, machines.two)
        while row_of(machines, run_id).epoch == stored.epoch:
            assert time.monotonic() - killed_at < 240
            command_line(machines, "suite", "reconcile")
            time.sleep(5)
        taken_s = time.monotonic() - killed_at
        wait_for("the end of the run", lambda: row_of(machines, run_id).done)
    finally:
        kill_machine(machines.one)
        kill_machine(machines.two)
    moved = RunDir(machines.two.root / "runs" / run_id)
    starts = moved.ledger.events(AgentStarted)
    sys.stderr.write(
        f"taken over after {taken_s:.0f} s; {used_s - starts[1].elapsed_s:.1f} s of the budget uncharged; "
        f"{row_of(machines, run_id).outcome}\n"
    )
    assert used_s - starts[1].elapsed_s < 60
    assert [entry[-1] for entry in run.ledger.rows()][: stored.seq] == [entry[-1] for entry in moved.ledger.rows()][
        : stored.seq
    ]
    assert len(moved.ledger.events(SubmissionAccepted)) >= SUBMISSIONS
    assert machines.two.problems(run_id) == []
    assert taken_s < 240  # 180 s on a machine that does nothing else


def test_a_process_that_was_stopped_past_its_lease_ends_with_its_agent_and_writes_nothing(machines: Machines) -> None:
    try:
        worker = start_worker(machines, machines.one)
        [run_id] = submit(machines, 1)
        run = RunDir(machines.one.root / "runs" / run_id)
        wait_for("a grade", lambda: run.ledger.path.exists() and run.ledger.events(Graded))
        stopped = [each for each in processes_of(machines.one) if each.pid != worker.pid]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        claims = machines.cluster.claims
        wait_for("the end of the lease", lambda: not row_of(machines, run_id).live)
        claim = claims.take(new_run(RunDir(run.root).spec), "another:1:x")
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        seconds = wait_for("the end of the old one", lambda: not [each for each in stopped if is_alive(each)], 60)
        row = row_of(machines, run_id)
        claims.release(claim, "cancelled", done=True)
    finally:
        kill_machine(machines.one)
    sys.stderr.write(f"the old process and its agent were gone {seconds:.1f} s after SIGCONT\n")
    assert (row.owner, row.seq, row.manifest) == ("another:1:x", claim.before.seq, claim.before.manifest)
    assert seconds < 30  # 5 s on a machine that does nothing else


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
