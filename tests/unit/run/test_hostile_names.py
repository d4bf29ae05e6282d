"""Tests a run full of hostile names and answers: all outputs for people show them as visible text."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from a2rl.cli import main
from a2rl.cli.console import PlainConsole
from a2rl.cli.flow_runner import Follower
from a2rl.core.errors import InvalidSubmissionError, UsageError
from a2rl.core.event_log import EventLog
from a2rl.core.files import read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.recording.code_history import snapshot_code
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir, new_run_id
from a2rl.run.events import AgentEnded, SubmissionAccepted
from a2rl.run.names import RUN_ID
from stages.grade import grade
from tests.run_maker import FakePool, checkout, end_agent, grade_private, grade_result, make_run, submit_checkpoint
from tests.small_model import build_base_model, trained_copy

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\r\u202egpj\u2066\u200b\ufeff\u2028\U000e0041" + "a" + "\u0301" * 60
MARKUP = "[bold red]red[/][link=http://evil]x[/link]:skull:"
HTML = "<img src=x onerror=alert(1)>"
NAME = f"{ESCAPES}{MARKUP}{HTML}".replace("/", "|")
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
    "|\u0301{9}"
)


def assert_shown(text: str) -> None:
    assert not (found := OBEYED.search(text)), (
        f"{found[0]!r} in {text[max(0, found.start() - 60) : found.end() + 60]!r}"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, Settings]:
    folder = tmp_path_factory.mktemp("hostile") / "checkout"
    folder.mkdir()
    settings = checkout(folder)
    base_model = build_base_model(folder / "models" / "small")
    run = make_run(settings, base_model)
    (run.workspace / "code" / NAME).write_text("x = 1")
    service = GradingService(run, cast(GraderPool, FakePool()))
    for seed, name in enumerate((NAME, "plain"), start=1):
        trained_copy(base_model, run.workspace / "output" / name, seed)
        submit_checkpoint(service, f"output/{name}")
    with pytest.raises(InvalidSubmissionError):
        submit_checkpoint(service, f"nowhere/{NAME}")
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=1, reason="crashed", exit_code=1, why=f"it said {NAME}"))
    end_agent(run)
    grade_private(run)
    grade(run, settings)
    _answer_with(run, f"{NAME}\nand on")
    write_report(run, settings)
    Tracker(settings).sync(run)
    return run, settings


def _answer_with(run: RunDir, answer: str) -> None:
    for path in run.grades.glob("*.json"):
        items = read_model(path, GradeResult).items
        write_model(path, grade_result([item.model_copy(update={"answer": answer}) for item in items], 0.5))


@pytest.mark.parametrize(
    "command",
    ["runs", "runs --json", "verify {run}", "verify {run} --json", "report {run}", "resume {name}", "verify {name}"],
)
def test_no_command_prints_what_a_terminal_would_obey(
    run: tuple[RunDir, Settings], command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(run[1].root))
    words = [part.format(run=run[0].id, name=NAME) for part in command.split(" ")]
    monkeypatch.setattr(sys, "argv", ["a2rl", *words])
    with contextlib.suppress(SystemExit):
        main()
    printed = capsys.readouterr()
    assert printed.out or printed.err
    assert_shown(printed.out + printed.err)


def test_the_report_shows_it_as_text(run: tuple[RunDir, Settings]) -> None:
    page = run[0].report.read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert r"\x1b[2J" in page
    assert r"\u202e" in page
    assert_shown(page)


def test_mlflow_shows_it_as_text(run: tuple[RunDir, Settings]) -> None:
    tracker = Tracker(run[1])
    [experiment] = [each for each in tracker.store.client.search_experiments() if each.name == "tests"]
    shown = tracker.store.client.search_runs([experiment.experiment_id])
    tags = [f"{value}" for each in shown for value in (*each.data.tags.values(), *each.data.params.values())]
    assert any(r"\x1b[2J" in tag for tag in tags)
    for tag in tags:
        assert_shown(tag)
    artifacts = list((run[1].mlruns / "artifacts").rglob("items.json"))
    assert artifacts
    for path in artifacts:
        for row in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for value in row:
                assert_shown(str(value))


def test_the_lines_of_a_run_under_way_show_it_as_text(run: tuple[RunDir, Settings]) -> None:
    screen = io.StringIO()
    follower = Follower([run[0]], PlainConsole(file=screen, force_terminal=True, color_system=None, width=200))
    follower._seen.clear()
    follower._look()
    lines = screen.getvalue()
    assert "submission 1 after" in lines
    assert "crashed" in lines
    assert MARKUP.replace("/", "|") in lines
    assert_shown(lines)
    assert len(lines.splitlines()) == len(
        [line for line in lines.splitlines() if run[0].id in line or "sandbox" in line]
    )


@pytest.fixture
def screen() -> tuple[PlainConsole, io.StringIO]:
    kept = io.StringIO()
    return PlainConsole(file=kept, force_terminal=True, color_system=None, width=400, highlight=False), kept


def test_the_console_shows_everything_that_is_given_to_it(screen: tuple[PlainConsole, io.StringIO]) -> None:
    console, kept = screen
    table = Table(box=None)
    table.add_column(NAME)
    table.add_row(NAME)
    for thing in (NAME, Text(NAME), Text.assemble("a", (NAME, "red")), table, escape(NAME)):
        console.print(thing)
        console.print(thing, markup=True, emoji=True, soft_wrap=True)
    assert_shown(kept.getvalue())
    assert "red[|][link=http:" in kept.getvalue()


def test_an_error_is_one_visible_line() -> None:
    message = str(UsageError(f"no run {NAME}\nokay: it is all fine"))
    assert "\n" not in message
    assert_shown(message)


def test_a_log_of_json_lines_is_visible_ascii(tmp_path: Path) -> None:
    EventLog(tmp_path / "log.jsonl").write(path=NAME, other="\udcff")
    [line] = (tmp_path / "log.jsonl").read_text().splitlines()
    assert line.isascii()
    assert_shown(line)
    assert json.loads(line)["path"] == NAME


def test_the_history_of_the_code_has_visible_messages(run: tuple[RunDir, Settings], tmp_path: Path) -> None:
    command = ["git", "log", "--format=%B"]
    log = subprocess.run(command, cwd=run[0].code, capture_output=True, text=True, check=True).stdout
    assert "submission of output" in log
    assert_shown(log)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("")
    assert snapshot_code(tmp_path / "code", tmp_path / "history", "with \0 a zero")


def test_a_run_of_an_agent_with_any_name_has_a_plain_id() -> None:
    for name in ("my agent", "büro", NAME, "x" * 300):
        assert re.fullmatch(RUN_ID, new_run_id("gsm8k", name))
    assert new_run_id("gsm8k", "my agent").startswith("gsm8k-my-agent-2")


def test_what_was_submitted_stays_in_the_ledger_as_it_is(run: tuple[RunDir, Settings]) -> None:
    assert run[0].ledger.events(SubmissionAccepted)[0].model_path == f"output/{NAME}"[:500]
