"""The whole pipeline through the real command line: Prefect, service, worker, MLflow, on a very small model."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from a2rl.events import AgentStarted
from a2rl.run import RunDir
from tests.flow.checkout import Checkout

FAILS_TWICE = """from a2rl.errors import InfrastructureError
    counter = Path(__file__).with_name("failures")
    failures = len(counter.read_text()) if counter.exists() else 0
    if failures < 2:
        counter.write_text("x" * (failures + 1))
        raise InfrastructureError("the hub cannot be reached")"""
STAGES = {"setup", "baseline", "execute", "grade", "report"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout") / "a2rl", {"steady": "", "flaky": FAILS_TWICE})


@pytest.fixture(scope="module")
def grid(checkout: Checkout) -> dict[tuple[str, str], dict[str, Any]]:
    """One flow over two tasks and two agents: one that submits three checkpoints, one that crashes."""
    crash = checkout.script("crash", "nproc; exit 7\n")
    agents = [argument for agent in (checkout.submitter(3), crash) for argument in ("--agent", str(agent))]
    tasks = ["--task", "steady", "--task", "flaky"]
    runs = checkout.json("bench", "smoke", *tasks, *agents, "--budget", "2m", "--concurrency", "2")
    return {(run["task"], Path(run["agent"]).parent.name): run for run in runs}


def prefect_runs(checkout: Checkout) -> list[tuple[str, int]]:
    """The names of all task runs in Prefect's own database, with how often each was run."""
    with sqlite3.connect(checkout.root / ".prefect" / "prefect.db") as database:
        return database.execute("SELECT name, run_count FROM task_run").fetchall()


def test_every_cell_of_the_grid_becomes_a_run(grid: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert set(grid) == {(task, agent) for task in ("steady", "flaky") for agent in ("submitter", "crash")}
    for run in grid.values():
        assert Path(run["report"]).is_file()


def test_a_run_scores_every_submission_and_the_private_split(grid: dict[tuple[str, str], dict[str, Any]]) -> None:
    run = grid["steady", "submitter"]
    assert run["submissions"] == 3
    assert run["private"] is not None
    assert run["verdict"] in {"improved", "inconclusive", "worse"}


def test_a_stage_that_fails_twice_for_an_infrastructure_reason_is_retried_and_the_run_is_whole(
    checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]
) -> None:
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


@pytest.mark.parametrize("task", ["steady", "flaky"])
def test_verify_passes(checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]], task: str) -> None:
    done = checkout.run("verify", grid[task, "submitter"]["run_id"])
    assert done.returncode == 0, done.stdout


def test_an_edited_score_is_found(checkout: Checkout, grid: dict[tuple[str, str], dict[str, Any]]) -> None:
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


def test_the_log_has_no_warnings_and_no_stack_traces(checkout: Checkout) -> None:
    done = checkout.run("run", "--task", "steady", "--agent", "noop", "--budget", "20s")
    assert done.returncode == 0
    for noise in ("Traceback", "Warning", "CancelledError", "INFO"):
        assert noise not in done.stderr + done.stdout, done.stderr
