"""Tests the id of a launch in the list of runs, in MLflow and in the report."""

import json
import shutil
import socket
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from a2rl.cli.commands import app
from a2rl.core.settings import Settings
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir


@pytest.fixture
def two_launches(new_run: Callable[..., RunDir]) -> list[RunDir]:
    return [new_run(run_id=f"gsm8k-noop-{launch}", launch=launch) for launch in ("smoke-1", "smoke-2")]


def test_runs_lists_those_of_one_launch(
    settings: Settings, two_launches: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    printed = CliRunner().invoke(app, ["runs", "--launch", "smoke-2", "--json"])
    assert printed.exit_code == 0, printed.output
    assert [(run["id"], run["launch"]) for run in json.loads(printed.stdout.splitlines()[-1])] == [
        ("gsm8k-noop-smoke-2", "smoke-2")
    ]


def test_a_damaged_run_is_of_no_launch(
    settings: Settings, two_launches: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    (two_launches[0].root / "spec.json").write_text("{}")
    printed = CliRunner().invoke(app, ["runs", "--launch", "smoke-2", "--json"])
    assert len(json.loads(printed.stdout.splitlines()[-1])) == 1


def test_an_empty_list_of_runs_says_why(
    settings: Settings, two_launches: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    assert "no such runs: `a2rl runs` lists all" in CliRunner().invoke(app, ["runs", "--launch", "smoke-3"]).output
    for run in two_launches:
        shutil.rmtree(run.root)
    assert "no runs yet: `a2rl run` starts one" in CliRunner().invoke(app, ["runs"]).output


@pytest.mark.heavy
def test_mlflow_and_the_report_carry_the_launch(settings: Settings, two_launches: list[RunDir]) -> None:
    run, tracker = two_launches[0], Tracker(settings)
    tracker.sync(run)
    [experiment] = [each for each in tracker.store.client.search_experiments() if each.name == run.spec.suite]
    found = tracker.store.client.search_runs([experiment.experiment_id], "tags.`a2rl.launch` = 'smoke-1'")
    assert [each.info.run_name for each in found] == [run.id]
    write_report(run, settings)
    assert "smoke-1" in run.report.read_text(encoding="utf-8").replace(run.id, "")


def test_nothing_starts_if_the_users_prefect_does_not_answer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
    said = CliRunner().invoke(app, ["run", "--task", "gsm8k", "--agent", "noop", "--model", "tiny"])
    assert "where no Prefect server answers" in str(said.exception), said.output
    assert not list(RunDir.all(settings.runs))
