"""Tests comparisons of two stacks: on the same items, corrected for the number of tasks, and by clear names."""

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.results.suite.leaderboard import compare_stacks, stack_names
from a2rl.results.suite.run_summary import RunSummary, summaries
from a2rl.run.directory import RunDir
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunSummary]:
    settings: Settings = checkout(tmp_path_factory.mktemp("checkout"))
    for number in range(4):
        simulate_run(settings, number, agent="codex", driver="gpt-5.4", skill=0.3)
        simulate_run(settings, 10 + number, agent="claude-code", driver="opus", skill=0.8)
        simulate_run(settings, 20 + number, agent="claude-code", driver="sonnet", skill=0.8)
    simulate_run(settings, 30, agent="codex", driver="gpt-5.4", task="humaneval")
    return summaries(RunDir.all(settings.runs)).runs


def test_the_difference_is_that_of_mean_gains_on_shared_tasks(runs: list[RunSummary]) -> None:
    [row] = compare_stacks("codex", "opus", runs)
    assert (row.task, row.runs, row.other_runs) == ("gsm8k", 4, 4)
    assert row.difference == pytest.approx(row.other_gain - row.gain)
    assert row.ci.low > 0
    assert row.p == row.holm_p < 0.01


def test_stacks_of_equal_skill_do_not_differ(runs: list[RunSummary]) -> None:
    [row] = compare_stacks("opus", "sonnet", runs)
    assert row.ci.low < 0 < row.ci.high


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [("claude-code", "codex", "part of 2 names"), ("nobody", "codex", "no stack"), ("codex", "gpt", "both the stack")],
)
def test_an_unclear_name_is_an_error_that_lists_the_stacks(
    runs: list[RunSummary], one: str, other: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        compare_stacks(one, other, runs)
    assert "claude-code · sonnet" in str(error.value)


def test_stacks_without_a_common_task_are_not_compared(runs: list[RunSummary]) -> None:
    elsewhere = [run for run in runs if run.task == "humaneval" or run.settings["agent"] == "claude-code"]
    with pytest.raises(UsageError, match="no finished runs of one task"):
        compare_stacks("codex", "opus", elsewhere)


def test_budgets_in_the_names_of_stacks_are_for_people(settings: Settings) -> None:
    for number, budget_s in enumerate((60.0, 60.25)):
        simulate_run(settings, number, agent="codex", driver=None, budget_s=budget_s)
    names = stack_names(summaries(RunDir.all(settings.runs)).runs)
    assert set(names.values()) == {"codex · budget 1m", "codex · budget 60.25"}
