"""Tests `a2rl runs`: filters, sorting, and runs that cannot be read."""

import json
from pathlib import Path

import pytest

from a2rl.cli.results import COLUMNS, list_runs, show_list
from a2rl.cli.stored_runs import compare, outputs, report, runs
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionRefused
from a2rl.run.failure import mark_refused
from a2rl.run.records import ExecuteRecord
from tests.run_maker import checkout, spec
from tests.simulated_runs import simulate_run


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = checkout(tmp_path)
    simulate_run(settings, 1, skill=0.9, agent="codex", driver="gpt", suite="one")
    simulate_run(settings, 2, skill=0.3, agent="claude", driver="opus", suite="two", mode="rl-only")
    simulate_run(settings, 3, submissions=0, agent="codex", suite="two", task="humaneval")
    RunDir.create(settings.runs, spec(run_id="a-new-one", agent="codex"))
    return settings


def test_a_run_says_why_its_agent_ended_and_submissions_failed(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "load", lambda: settings)
    run = RunDir(settings.runs / "gsm8k-sim-00001")
    why = "a module or library is missing: ModuleNotFoundError: No module named 'peft'"
    executed = run.need("execute", ExecuteRecord)
    run.write("execute", executed.model_copy(update={"ended": "crashed", "why": why, "responsible": "machine"}))
    for path, reason, count in (("output/v1", "the folder has no config.json", 1), ("v2", "there is no folder v2", 7)):
        run.ledger.append(SubmissionRefused(elapsed_s=1, model_path=path, reason=reason, count=count))
    runs(run.id, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ended"], facts["why"], facts["responsible"]) == ("crashed", why, "machine")
    assert [(each["model_path"], each["reason"], each["count"]) for each in facts["refused"]] == [
        ("output/v1", "the folder has no config.json", 1),
        ("v2", "there is no folder v2", 7),
    ]
    runs(run.id)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"The agent ended (crashed): {why}." in shown
    assert "Refused: output/v1: the folder has no config.json." in shown
    assert "Refused: v2, 7 times: there is no folder v2." in shown


def test_a_refused_run_says_why_and_is_not_to_be_resumed(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "load", lambda: settings)
    mark_refused(RunDir(settings.runs / "a-new-one"), UsageError("no model 'x': name one"))
    runs("a-new-one", as_json=True)
    assert json.loads(capsys.readouterr().out)["reason"] == "no model 'x': name one"
    runs("a-new-one")
    shown = capsys.readouterr().out
    assert "The run was refused: no model 'x': name one\n" in shown
    assert "resume" not in shown


def test_a_comparison_names_the_runs_that_are_left_out(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "load", lambda *_: settings)
    for number, agent in enumerate(("codex", "claude", "other"), 4):
        simulate_run(settings, number, agent=agent, suite="three")
        simulate_run(settings, 10 + number, agent=agent, suite="three").record_path("grade").unlink()
    (simulate_run(settings, 20, agent="codex", suite="three").root / "ledger.db").write_bytes(b"no database")
    compare("codex", "claude", suite=["three"], as_json=True)
    shown = capsys.readouterr()
    [row] = json.loads(shown.out)
    assert (row["runs"], row["other_runs"]) == (1, 1)
    told = [line.removeprefix("Left out: ").split(",")[0] for line in shown.err.splitlines()]
    assert told == ["gsm8k-sim-00020", "gsm8k-sim-00014", "gsm8k-sim-00015"]
    assert "00020, which cannot be read: " in shown.err
    assert "00014, which has not finished: " in shown.err


def ids(settings: Settings, order: str = "run", reverse: bool = False, **wanted: str) -> list[str]:
    return [each.run.id for each in list_runs(RunDir.all(settings.runs), order, reverse, **wanted)]


def test_runs_are_filtered_by_their_settings_and_results(settings: Settings) -> None:
    assert len(ids(settings)) == 4
    assert ids(settings, suite="one") == ["gsm8k-sim-00001"]
    assert ids(settings, agent="codex", state="after grade") == ["gsm8k-sim-00001", "humaneval-sim-00003"]
    assert ids(settings, driver="-", agent="codex") == ["a-new-one", "humaneval-sim-00003"]
    assert ids(settings, mode="rl-only") == ["gsm8k-sim-00002"]
    assert ids(settings, verdict="no submission") == ["humaneval-sim-00003"]
    assert ids(settings, launch="nothing") == []


def test_runs_are_sorted_and_those_without_the_value_come_last(settings: Settings) -> None:
    up = ["humaneval-sim-00003", "gsm8k-sim-00002", "gsm8k-sim-00001"]
    assert ids(settings, "gain") == [*up, "a-new-one"]
    assert ids(settings, "gain", reverse=True) == [*reversed(up), "a-new-one"]
    with pytest.raises(UsageError, match="choose one of run, created"):
        ids(settings, "colour")


def test_an_unreadable_run_is_listed_unless_something_is_wanted(settings: Settings) -> None:
    (settings.runs / "gsm8k-sim-00001" / "spec.json").write_text("{")
    assert ids(settings)[-1] == "gsm8k-sim-00001"
    assert "gsm8k-sim-00001" not in ids(settings, agent="codex")


def test_an_option_that_would_do_nothing_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "load", lambda: settings)
    with pytest.raises(UsageError, match="--task, --state: only for the list of runs"):
        runs("gsm8k-sim-00001", task="humaneval", state="done")
    with pytest.raises(UsageError, match="leave out gsm8k-sim-00001, or give it as a further --suite"):
        report("gsm8k-sim-00001", suite=["one"])
    with pytest.raises(UsageError, match="leave out 2 or --base-model"):
        outputs("gsm8k-sim-00001", 2, base_model=True)


def test_the_table_names_what_distinguishes_runs(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert {"suite", "driver", "mode", "seed"} < {column.title for column in COLUMNS}
    show_list(list_runs(RunDir.all(settings.runs)))
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("rl-only", "opus", "two"))
