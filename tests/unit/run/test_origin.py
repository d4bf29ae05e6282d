"""Tests that runs of somebody else are not continued with the reader's keys."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from a2rl.cli import launching
from a2rl.cli.commands import app
from a2rl.core.errors import UsageError
from a2rl.core.files import write_model
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.owner import create_run, require_made_here
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


def test_a_run_that_was_sent_is_continued_if_the_user_says_so(
    sent: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ChecksReachedError(Exception):
        pass

    def check(*_: object) -> None:
        raise ChecksReachedError

    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setattr(launching, "_check", check)
    assert isinstance(CliRunner().invoke(app, ["resume", "--trust", sent.id]).exception, ChecksReachedError)
    assert isinstance(CliRunner().invoke(app, ["resume", sent.id]).exception, ChecksReachedError)
