"""Tests what Prefect's pages show of runs: the figures, and an agent's texts as text."""

from a2rl.core.settings import Settings
from a2rl.results.suite.leaderboard import boards
from a2rl.results.suite.run_summary import summaries
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionRefused
from flows.artifacts import _board, _rows, _slug, tags_of
from tests.simulated_runs import simulate_run

HOSTILE = "[mend](javascript:x)\x1b[2J|<b>"


def test_the_table_has_every_submission_and_refusal_as_text(settings: Settings) -> None:
    run = simulate_run(settings, 1, submissions=2)
    run.ledger.append(SubmissionRefused(elapsed_s=9, model_path=f"{run.workspace}/v9", reason=HOSTILE))
    first, _, refused = _rows(run, run.ledger.entries())
    assert (first["submission"], first["model"]) == (1, "output")
    assert float(first["public score"]) > 0
    assert (refused["submission"], refused["model"]) == ("refused", "v9")
    assert "](" not in refused["note"]
    assert "\x1b" not in refused["note"]


def test_the_leaderboard_shows_names_as_text(settings: Settings) -> None:
    found, _ = summaries([simulate_run(settings, 1, agent=HOSTILE)])
    text = "\n".join(line for board in boards(found) for line in _board(board))
    assert "javascript" in text
    assert "](" not in text
    assert "<b>" not in text
    assert "\x1b" not in text


def test_tags_name_suite_launch_task_and_agent(settings: Settings) -> None:
    run = simulate_run(settings, 1, agent="codex")
    assert tags_of(run) == ["tests", "sim-launch", "gsm8k", "codex"]


def test_a_run_that_is_only_in_the_store_yet_has_no_tags(settings: Settings) -> None:
    assert tags_of(RunDir(settings.runs / "gsm8k-elsewhere")) == []


def test_keys_are_those_that_prefect_accepts() -> None:
    assert _slug("GSM8k_x/../Y-report") == "gsm8k-x-y-report"
