"""Tests that runs of somebody else are not continued with the reader's keys."""

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from a2rl.cli import flow_runner, launching
from a2rl.cli.commands import app
from a2rl.cluster.copies import write_spec
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.errors import UsageError
from a2rl.core.files import write_model
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import RunClosed
from a2rl.run.owner import create_run, owned, require_made_here
from tests.run_maker import checkout


@pytest.fixture
def sent(tmp_path: Path, run: RunDir, settings: Settings) -> RunDir:
    """A run that was made in another checkout and put into `runs/` of this one."""
    (tmp_path / "theirs").mkdir()
    theirs = checkout(tmp_path / "theirs")
    url = "https://collects.example/v1"
    made = create_run(run.spec.model_copy(update={"run_id": "sent", "base_url": url}), theirs)
    shutil.copytree(theirs.runs / made.id, settings.runs / made.id)
    return RunDir(settings.runs / made.id)


def test_a_run_of_this_checkout_is_continued(run: RunDir, settings: Settings) -> None:
    made = create_run(run.spec.model_copy(update={"run_id": "made"}), settings)
    require_made_here([made], settings)


def test_other_settings_are_not_those_of_the_run_that_was_made(run: RunDir, settings: Settings) -> None:
    made = create_run(run.spec.model_copy(update={"run_id": "made"}), settings)
    write_model(made.root / "spec.json", made.spec.model_copy(update={"base_url": "http://other.example"}))
    with pytest.raises(UsageError, match="other"):
        require_made_here([RunDir(made.root)], settings)


@pytest.mark.parametrize("command", ["resume", "rerun"])
def test_a_run_that_was_sent_is_refused(
    sent: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The refusal says where its keys would go."""
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    refused = CliRunner().invoke(app, [command, sent.id])
    assert isinstance(refused.exception, UsageError)
    assert "https://collects.example/v1" in str(refused.exception)
    assert f"a2rl resume --trust {sent.id}" in str(refused.exception)


class ChecksReachedError(Exception):
    """The checks before a run are reached, and find something."""


def check(*_: object) -> None:
    raise ChecksReachedError


def test_a_run_that_was_sent_is_continued_if_the_user_says_so(
    sent: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setattr(launching, "_check", check)
    assert isinstance(CliRunner().invoke(app, ["resume", "--trust", sent.id]).exception, ChecksReachedError)
    assert isinstance(CliRunner().invoke(app, ["resume", sent.id]).exception, ChecksReachedError)


@pytest.fixture
def cluster(run: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    """Machines that share a store, which has the settings of the run."""
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setenv("A2RL_STORE", f"file://{tmp_path}/store")
    monkeypatch.setattr(launching, "_check", check)
    found = Cluster.needed(Settings.load())
    write_spec(found.store, run.spec)
    found.claims.register([new_run(run.spec)])
    return found


def test_a_resume_that_cannot_begin_is_no_attempt(run: RunDir, cluster: Cluster) -> None:
    claims = cluster.claims
    before = claims.row(run.id)
    assert isinstance(CliRunner().invoke(app, ["resume", run.id]).exception, ChecksReachedError)
    after = claims.row(run.id)
    assert before is not None
    assert after is not None
    assert (after.epoch, after.live, after.outcome) == (before.epoch, before.live, before.outcome) == (0, False, "")
    with owned(run):
        pass


@pytest.mark.usefixtures("cluster")
def test_a_sent_run_with_the_id_of_one_in_the_store_is_refused(run: RunDir) -> None:
    write_model(run.root / "spec.json", run.spec.model_copy(update={"base_url": "https://collects.example/v1"}))
    refused = CliRunner().invoke(app, ["resume", run.id]).exception
    assert isinstance(refused, UsageError)
    assert "https://collects.example/v1" in str(refused)


def test_a_run_that_is_in_use_is_refused_before_the_checks(
    run: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setattr(launching, "_check", check)
    with owned(run):
        refused = CliRunner().invoke(app, ["resume", "--trust", run.id]).exception
    assert isinstance(refused, UsageError)
    assert f"is in use by process {os.getpid()}" in str(refused)


def test_the_suite_that_a_sent_run_names_does_not_start_it(
    run: RunDir, sent: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with the run whose id it gives as its suite, nor with the runs of the suite."""
    own = create_run(run.spec.model_copy(update={"run_id": "own", "suite": "smoke"}), settings)
    started: list[str] = []
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setattr(launching, "_check", lambda specs, _: started.extend(spec.run_id for spec in specs))
    monkeypatch.setattr(flow_runner, "run_flow", lambda *_: None)

    def resume(*words: str) -> Result:
        return CliRunner().invoke(app, ["resume", *words])

    for suite in ("own", "smoke"):
        write_model(sent.root / "spec.json", sent.spec.model_copy(update={"suite": suite}))
        for words in (["own"], ["smoke"], ["smoke", "own"], ["--trust", "own"]):
            resume(*words)
            assert started == ["own"], words
            started.clear()
    assert resume("smoke").output.count("left out: run sent was not made in this checkout") == 1
    assert "--trust is for single runs" in str(resume("--trust", "smoke").exception)
    own.record_path("validity").parent.mkdir()
    own.record_path("validity").touch()
    own.ledger.append(RunClosed(verdict="improved", failed_stage=None, manifest_digest="m"))
    assert "no run of 'smoke' can be continued here" in str(resume("smoke").exception)
    with pytest.raises(UsageError, match="run sent was not made in this checkout"):
        require_made_here([sent], settings)
