"""Runs on several checkouts with real Postgres, Redis, S3 and Prefect servers. Slow: they take minutes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from a2rl.cluster.copies import write_spec
from a2rl.cluster.holding import new_run
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, Graded, SubmissionAccepted
from flows.submission import prefect_client, take_flow_run
from tests.flow.checkout import Checkout
from tests.flow.machines import (
    SUBMISSIONS,
    WAIT_S,
    Machines,
    is_alive,
    kill_machine,
    machines_with_services,
    processes_of,
    wait_for,
)
from tests.flow.two_resumes import race
from tests.run_maker import spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
ASKING = 12
ROUNDS = int(os.environ.get("A2RL_ROUNDS", "5"))
POOL = "tests"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with machines_with_services(tmp_path_factory.mktemp("machines")) as machines:
        yield machines


def test_of_two_simultaneous_resumes_one_wins_and_one_refuses(machines: Machines) -> None:
    raced = spec(run_id="gsm8k-race-1")
    cluster = machines.cluster
    write_spec(cluster.store, raced)
    cluster.claims.register([new_run(raced)])
    slowest = max(race(machines, raced.run_id, ROUNDS))
    assert machines.row(raced.run_id).seq == ROUNDS
    assert slowest < 20.0  # 2 s on a machine that does nothing else
    sys.stderr.write(f"{ROUNDS} rounds; the slowest refusal took {slowest:.2f} s\n")


def start_worker(checkout: Checkout, *prefix: str) -> "subprocess.Popen[bytes]":
    with (checkout.root / "worker.log").open("ab") as log:
        return subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", "a2rl", "suite", "worker", POOL],
            cwd=checkout.root,
            env=checkout.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_a_run_of_a_killed_machine_is_soon_taken_over(machines: Machines) -> None:
    """This takes at most three minutes."""
    try:
        start_worker(machines.one)
        [run_id] = machines.submit(POOL, 0)
        run = RunDir(machines.one.root / "runs" / run_id)
        wait_for("two grades", lambda: run.ledger.path.exists() and len(run.ledger.events(Graded)) >= 2)
        wait_for("two stored grades", lambda: machines.row(run_id).progress.submissions >= 2)
        stored = machines.row(run_id)
        kill_machine(machines.one)
        used_s, killed_at = run.clock.read_state().consumed_s, time.monotonic()
        start_worker(machines.two)
        while machines.row(run_id).epoch == stored.epoch:
            assert time.monotonic() - killed_at < 240
            machines.one.run("suite", "reconcile")
            time.sleep(5)
        taken_s = time.monotonic() - killed_at
        wait_for("the end of the run", lambda: machines.row(run_id).done)
    finally:
        kill_machine(machines.one)
        kill_machine(machines.two)
    moved = RunDir(machines.two.root / "runs" / run_id)
    starts = moved.ledger.events(AgentStarted)
    sys.stderr.write(
        f"taken over after {taken_s:.0f} s; {used_s - starts[1].elapsed_s:.1f} s of the budget uncharged; "
        f"{machines.row(run_id).outcome}\n"
    )
    assert used_s - starts[1].elapsed_s < 60
    assert [entry[-1] for entry in run.ledger.rows()][: stored.seq] == [entry[-1] for entry in moved.ledger.rows()][
        : stored.seq
    ]
    assert len(moved.ledger.events(SubmissionAccepted)) >= SUBMISSIONS
    assert machines.two.problems(run_id) == []
    assert taken_s < 240  # 180 s on a machine that does nothing else


def test_a_run_whose_worker_alone_dies_is_finished_by_its_engine(machines: Machines) -> None:
    try:
        worker = start_worker(machines.one)
        [run_id] = machines.submit(POOL, 2)
        run = RunDir(machines.one.root / "runs" / run_id)
        wait_for("a grade", lambda: run.ledger.path.exists() and run.ledger.events(Graded))
        worker.kill()
        worker.wait()
        graded = len(run.ledger.events(Graded))
        wait_for("the end", lambda: machines.one.run("suite", "reconcile") and machines.row(run_id).done)
    finally:
        kill_machine(machines.one)
    row = machines.row(run_id)
    assert graded < SUBMISSIONS
    assert (row.epoch, row.attempt, len(run.ledger.events(AgentStarted))) == (1, 1, 1)
    assert len(run.ledger.events(SubmissionAccepted)) == SUBMISSIONS
    assert machines.one.problems(run_id) == []


def test_a_worker_in_the_background_ends_when_it_is_told_to(machines: Machines) -> None:
    log = machines.one.root / "worker.log"
    before = log.stat().st_size if log.exists() else 0
    worker = start_worker(machines.one, "env", "--ignore-signal=INT")  # as a shell does for commands with &
    try:
        wait_for("its start", lambda: b" started!" in log.read_bytes()[before:])
        worker.terminate()
        worker.wait(timeout=60)
    finally:
        kill_machine(machines.one)


def test_a_process_stopped_past_its_lease_writes_nothing(machines: Machines) -> None:
    """Its agent ends with it."""
    try:
        worker = start_worker(machines.one)
        [run_id] = machines.submit(POOL, 1)
        run = RunDir(machines.one.root / "runs" / run_id)
        wait_for("a grade", lambda: run.ledger.path.exists() and run.ledger.events(Graded))
        stopped = [each for each in processes_of(machines.one) if each.pid != worker.pid]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        claims = machines.cluster.claims
        wait_for("the end of the lease", lambda: not machines.row(run_id).live)
        claim = claims.take(new_run(RunDir(run.root).spec), "another:1:x")
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        seconds = wait_for("the end of the old one", lambda: not [each for each in stopped if is_alive(each)], 60)
        row = machines.row(run_id)
        claims.release(claim, "cancelled", done=True)
    finally:
        kill_machine(machines.one)
    sys.stderr.write(f"the old process and its agent were gone {seconds:.1f} s after SIGCONT\n")
    assert (row.owner, row.seq, row.manifest) == ("another:1:x", claim.before.seq, claim.before.manifest)
    assert seconds < 30  # 5 s on a machine that does nothing else


def test_jobs_that_each_take_one_run_take_different_ones(machines: Machines) -> None:
    ids = machines.submit(POOL, 3, 4)
    command = ("suite", "worker", POOL, "--once")
    try:
        jobs = [place.start(*command) for place in (machines.one, machines.two)]
        said = [job.communicate(timeout=WAIT_S)[0] for job in jobs]
        assert {machines.row(run_id).epoch for run_id in ids} == {1}
        assert [job.returncode for job in jobs] == [0, 0], said
        assert all(machines.row(run_id).done for run_id in ids)
        idle = machines.one.run(*command)
        assert (idle.returncode, "nothing waits" in idle.stdout) == (0, True)
    finally:
        kill_machine(machines.one)
        kill_machine(machines.two)


def test_those_that_ask_at_the_same_moment_get_one_run_each(machines: Machines) -> None:
    machines.submit("rush", *range(ASKING))
    together = Barrier(ASKING)

    def take(wait: Callable[[], object]) -> FlowRun | None:
        with temporary_settings({PREFECT_API_URL: machines.variables["PREFECT_API_URL"]}), prefect_client() as client:
            wait()
            return take_flow_run(client, "rush")

    with ThreadPoolExecutor(ASKING) as threads:
        taken = list(threads.map(take, [together.wait] * ASKING))
    assert None not in taken
    assert len({flow_run.id for flow_run in taken if flow_run}) == ASKING
    assert take(lambda: None) is None
