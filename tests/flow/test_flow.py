"""Tests the whole pipeline through the real command line: Prefect, service, worker and MLflow, with a very small model.

The quick test kills each part once, the slow tests ten times. All share one checkout, which is slow to make.
"""

import json
import os
import random
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted
from tests.flow.checkout import Checkout
from tests.flow.crashes import VICTIMS, crash_round

pytestmark = pytest.mark.heavy
FAILS_TWICE = """from a2rl.core.errors import InfrastructureError
    counter = Path(__file__).with_name("failures")
    failures = len(counter.read_text()) if counter.exists() else 0
    if failures < 2:
        counter.write_text("x" * (failures + 1))
        raise InfrastructureError("the hub cannot be reached")"""
OF_RUNS = ("runs", "data", "mlruns", "baselines", "reports", ".prefect", "scripts")
"""What a reader of a bundle does not have."""
NOISE = ("Traceback", "Warning", "CancelledError", "INFO")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout") / "a2rl", {"steady": "", "flaky": FAILS_TWICE})


@pytest.fixture(scope="module")
def bench(checkout: Checkout) -> "subprocess.CompletedProcess[str]":
    """Runs one flow over two tasks and two agents: one submits three checkpoints, the other crashes."""
    crash = checkout.script("crash", "nproc; exit 7\n")
    agents = [argument for agent in (checkout.submitter(3), crash) for argument in ("--agent", str(agent))]
    tasks = ["--task", "steady", "--task", "flaky"]
    return checkout.run("bench", "smoke", *tasks, *agents, "--budget", "2m", "--concurrency", "2", "--json")


@pytest.fixture(scope="module")
def grid(bench: "subprocess.CompletedProcess[str]") -> dict[tuple[str, str], dict[str, Any]]:
    """The runs of the flow."""
    assert bench.returncode == 0, bench.stdout + bench.stderr
    runs = json.loads(bench.stdout.splitlines()[-1])
    return {(run["task"], Path(run["agent"]).parent.name): run for run in runs}


def prefect_runs(checkout: Checkout) -> list[tuple[str, int]]:
    """Returns the names of all task runs in Prefect's database, and how often each was run."""
    with sqlite3.connect(checkout.root / ".prefect" / "prefect.db") as database:
        return database.execute("SELECT name, run_count FROM task_run").fetchall()


def test_every_cell_of_the_grid_becomes_a_run(grid: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert set(grid) == {(task, agent) for task in ("steady", "flaky") for agent in ("submitter", "crash")}
    for run in grid.values():
        assert Path(run["report"]).is_file()


def test_the_page_of_the_flow_run_ends_with_the_leaderboard(
    checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]
) -> None:
    with sqlite3.connect(checkout.root / ".prefect" / "prefect.db") as database:
        shown = dict(database.execute("SELECT key, data FROM artifact").fetchall())
    assert "mean gain" in shown["leaderboard"]
    assert "[All runs in MLflow](http" in shown["leaderboard"]


def test_a_run_scores_every_submission_and_the_private_split(grid: dict[tuple[str, str], dict[str, Any]]) -> None:
    run = grid["steady", "submitter"]
    assert run["submissions"] == 3
    assert run["private"] is not None
    assert run["verdict"] in {"improved", "inconclusive", "worse"}


def test_a_stage_that_fails_for_infrastructure_is_retried(
    checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]
) -> None:
    """After two failures the run is whole."""
    run = grid["flaky", "submitter"]
    assert run["submissions"] == 3
    counts = {name: count for name, count in prefect_runs(checkout) if "flaky" in name and name.startswith("setup")}
    assert max(counts.values()) == 3


def test_runs_side_by_side_share_the_cores(checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]) -> None:
    cores = len(os.sched_getaffinity(0))
    for task in ("steady", "flaky"):
        log = checkout.root / "runs" / grid[task, "crash"]["run_id"] / "logs" / "agent.log"
        assert int(log.read_text()) == (cores // 2 or cores)


def test_an_agent_that_crashes_is_a_result_and_is_not_retried(
    checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]
) -> None:
    run = grid["steady", "crash"]
    found = RunDir(checkout.root / "runs" / run["run_id"])
    record = json.loads(found.record_path("execute").read_text(encoding="utf-8"))
    assert (record["ended"], record["exit_code"], record["attempts"]) == ("crashed", 7, 1)
    assert run["verdict"] == "no submission"
    assert len(found.ledger.events(AgentStarted)) == 1
    counts = [count for name, count in prefect_runs(checkout) if name == f"execute {run['run_id']}"]
    assert counts == [1]


def test_verify_passes(checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]) -> None:
    for task in ("steady", "flaky"):
        assert checkout.problems(grid[task, "submitter"]["run_id"]) == []


def test_verify_finds_an_edited_score(checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]) -> None:
    run_id = grid["flaky", "submitter"]["run_id"]
    record = checkout.root / "runs" / run_id / "records" / "grade.json"
    honest = record.read_text(encoding="utf-8")
    forged = json.loads(honest)
    forged["final"]["score"] = 99.0
    record.write_text(json.dumps(forged), encoding="utf-8")
    done = checkout.run("verify", run_id)
    record.write_text(honest, encoding="utf-8")
    assert done.returncode == 1
    assert "FAILED" in done.stdout


def test_a_stranger_grades_a_bundle_anew_in_another_checkout(
    checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    sent, run = tmp_path / "result.tar.gz", grid["steady", "submitter"]
    made = checkout.run("bundle", run["run_id"], "--with-weights", "-o", str(sent))
    assert made.returncode == 0, made.stderr
    reader = checkout.copy_to(tmp_path / "reader", *OF_RUNS)
    done = reader.run("audit", str(sent), "--regrade", "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sound"], done.stdout
    assert [each["differences"] for each in found["regrades"]] == [[], []]  # the checkpoint and the base model
    assert found["regrades"][0]["after"]["score"] == run["private"]
    assert found["not_regraded"] == {}
    assert done.returncode == {"valid": 0, "flagged": 3}[run["validity"]]
    assert not (reader.root / "runs").exists()


def test_the_bundle_of_a_run_without_a_result_ends_with_4(
    checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    """It is sound."""
    sent = tmp_path / "crash.tar.gz"
    assert checkout.run("bundle", grid["steady", "crash"]["run_id"], "-o", str(sent)).returncode == 0
    done = checkout.copy_to(tmp_path / "reader", *OF_RUNS).run("audit", str(sent), "--regrade", "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, found["sound"], found["not_regraded"]) == (4, True, {}), done.stdout


def test_what_a_user_sees_has_no_warnings_and_no_stack_traces(bench: "subprocess.CompletedProcess[str]") -> None:
    for noise in NOISE:
        assert noise not in bench.stderr + bench.stdout


def test_after_kills_nothing_is_lost_or_graded_twice(checkout: Checkout) -> None:
    """The service, its worker, the agent and at last the flow itself are killed; after a resume the run is whole."""
    killed = crash_round(checkout, "steady", "service+worker+agent+flow", random.Random(), submissions=3)
    assert killed.problem == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_the_same_holds_ten_times_at_random_moments(checkout: Checkout, victim: str) -> None:
    rounds = [crash_round(checkout, "steady", victim, random.Random(seed)) for seed in range(10)]
    assert [each for each in rounds if each.problem] == []


@pytest.mark.slow
def test_with_mlflow_down_a_run_is_whole(checkout: Checkout) -> None:
    """It says in one line how to catch up."""
    crash = checkout.script("brief", "exit 7\n")
    arguments = ("run", "--task", "steady", "--agent", str(crash), "--budget", "1m", "--json")
    process = checkout.start(*arguments, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    run_id = json.loads(out.splitlines()[-1])["run_id"]
    [told] = [line for line in (out + err).splitlines() if "MLflow" in line]
    assert f"a2rl report {run_id}" in told
    assert "Traceback" not in out + err
    done = checkout.run("report", run_id)
    assert done.returncode == 0, done.stderr
    assert checkout.problems(run_id) == []
