"""Tests what `a2rl suite` says of names that it does not know."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from a2rl.cli.commands import app
from a2rl.cluster.claims import NewRun
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir


@pytest.fixture
def cluster(settings: Settings, run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A store with one run, which is the environment's."""
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setenv("A2RL_STORE", f"file://{tmp_path}/store")
    cluster = Cluster.needed(Settings.load())
    cluster.claims.register([new_run(run.spec, "a-pool")])
    return cluster


@pytest.mark.parametrize("command", ["status", "watch", "cancel", "reopen", "reconcile"])
def test_a_name_that_no_run_has_is_an_error(command: str, cluster: Cluster) -> None:
    result = CliRunner().invoke(app, ["suite", command, "no-such-name"])
    assert isinstance(result.exception, UsageError), result.output
    assert "'no-such-name'" in str(result.exception)


def test_a_run_that_was_submitted_can_be_reopened(run: RunDir, cluster: Cluster) -> None:
    result = CliRunner().invoke(app, ["suite", "reopen", run.id])
    assert result.exit_code == 0, result.output
    assert f"a2rl resume {run.id}" in result.output


def test_what_a_machine_lacked_is_shown_of_a_run_that_waits(run: RunDir, cluster: Cluster) -> None:
    cluster.claims.declined(run.id, "refused: host-a took nothing: disk: it is full")
    result = CliRunner().invoke(app, ["suite", "status"])
    assert f"{run.id}: waiting: host-a took nothing: disk: it is full" in result.output


def test_the_watch_ends_if_only_runs_of_no_pool_are_left(cluster: Cluster) -> None:
    """It says how to continue them."""
    claim = cluster.claims.take(NewRun("by-hand", "alone", "alone-1", pool=""), "host-a:17:x")
    cluster.claims.release(claim, "interrupted", done=False)
    result = CliRunner().invoke(app, ["suite", "watch", "alone"])
    assert result.exit_code == 0, result.output
    assert "by-hand: stuck: no worker has it" in result.output
    assert "`a2rl resume RUN` continues it" in result.output
