"""Tests the id of a launch in the list of runs, in MLflow and in the report."""

import json
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from a2rl.cli import flow_runner, launching
from a2rl.cli.commands import app
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir
from a2rl.run.events import RunClosed
from a2rl.run.owner import trust
from a2rl.run.records import ReportRecord
from flows import pipeline
from tests.simulated_runs import simulate_run


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


@pytest.fixture
def smoke(settings: Settings) -> dict[str, RunDir]:
    """A suite with a report for every run. Only one run has ended."""
    runs = {}
    for number, name in enumerate(("ended", "failed", "not-closed", "not-judged")):
        run = runs[name] = simulate_run(settings, number, run_id=name, suite="smoke", launch="smoke-1")
        trust(run, settings)
        run.write("report", ReportRecord(seconds=0, path=run.report))
        if name != "not-judged":
            run.record_path("validity").touch()
        if name != "not-closed":
            stage = "execute" if name == "failed" else None
            run.ledger.append(RunClosed(verdict="improved", failed_stage=stage, manifest_digest="m"))
    return runs


def test_a_suite_stands_for_its_runs_that_have_not_ended(
    settings: Settings, smoke: dict[str, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do a launch, and the runs that are named after Ctrl-C."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr(flow_runner, "end_once", lambda: None)
    monkeypatch.setattr(flow_runner, "Watcher", stop)
    monkeypatch.setattr(launching, "_check", lambda *_: None)
    for name in ("smoke", "smoke-1"):
        stopped = CliRunner().invoke(app, ["resume", name]).exception
        assert str(stopped).endswith(": a2rl resume failed not-closed not-judged")
    smoke["not-judged"].record_path("validity").touch()
    for name in ("failed", "not-closed"):
        smoke[name].ledger.append(RunClosed(verdict="improved", failed_stage=None, manifest_digest="m"))
    for name, option in (("smoke", "--suite"), ("smoke-1", "--launch")):
        refused = CliRunner().invoke(app, ["resume", name]).exception
        assert f"all 4 runs of '{name}' have ended: `a2rl runs {option} {name}`" in str(refused)


def test_a_damaged_run_of_a_suite_keeps_no_other_from_going_on(
    settings: Settings, smoke: dict[str, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    for name, value in (("A2RL_ROOT", str(settings.root)), ("PREFECT_API_URL", "http://127.0.0.1:9/api")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(flow_runner, "end_once", lambda: None)
    monkeypatch.setattr(launching, "_check", lambda *_: None)
    monkeypatch.setattr(pipeline, "a2rl", lambda run_ids, **_: begun.extend(run_ids))
    smoke["failed"].ledger.path.write_text("this is no database, but long enough" * 99)
    printed = CliRunner().invoke(app, ["resume", "smoke", "--json"])
    assert printed.exit_code == 0, printed.output
    assert begun == ["failed", "not-closed", "not-judged"]
    damaged, *others = json.loads(printed.stdout.splitlines()[-1])
    assert (damaged["run_id"], damaged["state"][:9]) == ("failed", "damaged: ")
    assert [each["run_id"] for each in others] == begun[1:]
    assert "failed is damaged: " in printed.stderr


def test_a_run_whose_end_is_not_in_the_store_has_not_ended(
    settings: Settings, smoke: dict[str, RunDir], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resumed: list[str] = []
    for name, value in (("A2RL_ROOT", str(settings.root)), ("A2RL_STORE", f"file://{tmp_path}/store")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launching, "_check", lambda *_: None)
    monkeypatch.setattr(flow_runner, "run_flow", lambda runs, _: resumed.extend(run.id for run in runs))
    for name in ("failed", "not-closed", "not-judged"):
        shutil.rmtree(smoke[name].root)
    claims = Cluster.needed(Settings.load()).claims
    claims.release(claims.take(new_run(smoke["ended"].spec), "host:1:x"), "the store is away", done=False)
    CliRunner().invoke(app, ["resume", "smoke-1"])
    assert resumed == ["ended"]
    claims.close("ended", "improved")
    assert "all 1 runs of 'smoke-1' have ended" in str(CliRunner().invoke(app, ["resume", "smoke-1"]).exception)


@pytest.mark.heavy
def test_mlflow_and_the_report_carry_the_launch(settings: Settings, two_launches: list[RunDir]) -> None:
    run, tracker = two_launches[0], Tracker(settings)
    tracker.sync(run)
    [experiment] = [each for each in tracker.store.client.search_experiments() if each.name == run.spec.suite]
    found = tracker.store.client.search_runs([experiment.experiment_id], "tags.`a2rl.launch` = 'smoke-1'")
    assert [each.info.run_name for each in found] == [run.id]
    write_report(run, settings)
    assert "smoke-1" in run.report.read_text(encoding="utf-8").replace(run.id, "")


def test_runs_that_were_resumed_are_json_on_the_last_line(
    settings: Settings, two_launches: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setattr("a2rl.cli.launching._check", lambda *_: None)
    monkeypatch.setattr("a2rl.cli.flow_runner.run_flow", lambda *_: None)
    ids = [run.id for run in two_launches]
    printed = CliRunner().invoke(app, ["resume", "--trust", *ids, "--json"])
    assert printed.exit_code == 0, printed.output
    *sentences, last = printed.stdout.splitlines()
    assert [run["run_id"] for run in json.loads(last)] == ids
    assert not [line for line in sentences if line.startswith("{")]


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


@pytest.mark.parametrize(
    ("status", "body", "path", "is_prefect"),
    [
        (200, b"true", "/api", True),
        (200, b"true", "/api/", True),
        (401, b"", "/api", True),
        (404, b"true", "/api", False),
        (200, b"<html></html>", "/api", False),
    ],
)
def test_only_a_prefect_server_is_taken_for_one(
    settings: Settings, status: int, body: bytes, path: str, is_prefect: bool
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if "//" not in self.path else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        given = Settings(settings.root, {"PREFECT_API_URL": f"http://127.0.0.1:{server.server_port}{path}"})
        with nullcontext() if is_prefect else pytest.raises(UsageError, match=f"no Prefect server .* {status}.*/api"):
            launching._require_prefect(given)


def test_a_launch_that_may_not_fit_on_the_disk_says_so_first(
    settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setattr("a2rl.run.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=600 << 20))
    for module in ("config.estimate", "execution.preflight"):
        monkeypatch.setattr(f"a2rl.{module}.model_size", lambda *_: SimpleNamespace(bytes=10_000_000))
    command = ["bench", "smoke", "--task", "gsm8k", "--agent", "noop", "--model", str(base_model)]
    said = CliRunner().invoke(app, [*command, "--seed", "0", "--seed", "1"])
    assert "the checkpoints of these 2 runs take up to" in " ".join(said.output.split())
    assert not list(RunDir.all(settings.runs))


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_runs_side_by_side_cannot_share_a_grading_port(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    command = ["bench", "smoke", "--concurrency", "2", "--grading-port", "8765", *more]
    said = CliRunner().invoke(app, [*command, "--task", "gsm8k", "--task", "webshop"])
    assert "--grading-port 8765 serves one run at a time" in str(said.exception), said.output
    assert "or give --concurrency 1" in str(said.exception)
    assert not list(RunDir.all(settings.runs))
