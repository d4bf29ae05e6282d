"""`a2rl resume` in a checkout at another path, with a store in a folder: real commands, and no other service."""

from pathlib import Path

import pytest

from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, Graded, SubmissionAccepted
from tests.flow.machines import SUBMISSIONS, Machines, start_and_kill
from tests.flow.two_resumes import race, race_of_commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LOST_S = 30.0
"""The clock is copied every 20 seconds."""


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines.make(tmp_path, {"A2RL_STORE": f"file://{tmp_path}/store"})


def test_a_checkout_at_another_path_takes_over_a_killed_run(machines: Machines) -> None:
    run = start_and_kill(machines, submissions=2)
    stored = machines.row(run.id)
    known = [row[-1] for row in run.ledger.rows()][: stored.seq]
    done = machines.two.run("resume", run.id)
    assert done.returncode == 0, done.stdout + done.stderr
    moved = RunDir(machines.two.root / "runs" / run.id)
    starts, graded = moved.ledger.events(AgentStarted), moved.ledger.events(Graded)
    assert [row[-1] for row in moved.ledger.rows()][: stored.seq] == known
    assert len(starts) == 2
    assert run.clock.read_state().consumed_s - starts[1].elapsed_s < LOST_S
    accepted = {event.weights_digest for event in moved.ledger.events(SubmissionAccepted)}
    assert len(accepted) == SUBMISSIONS
    assert sorted(event.weights_digest for event in graded) == sorted(accepted)  # each is graded once
    assert machines.two.run("verify", run.id).returncode == 0
    assert (machines.row(run.id).epoch, machines.row(run.id).done) == (2, True)
    assert machines.one.run("resume", run.id).returncode == 2  # the run is closed; nothing is done twice


def test_of_two_resumes_one_wins_and_the_run_stays_sound(machines: Machines) -> None:
    run = start_and_kill(machines, submissions=1)
    assert max(race(machines, run.id, 6)) < 20.0  # 2 s on a machine that does nothing else
    race_of_commands(machines, run.id, on_one_host=True)
    race_of_commands(machines, run.id, on_one_host=False)
    assert machines.one.run("resume", run.id).returncode == 0
    assert machines.one.problems(run.id) == []
