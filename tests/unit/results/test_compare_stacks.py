"""Tests comparisons of two stacks: on the same items, corrected for the number of tasks, and by clear names."""

from typing import Any

import pytest

from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.results.suite.leaderboard import boards, compare_stacks, stack_names
from a2rl.results.suite.run_summary import SETTINGS, RunSummary, summaries, summary_of
from a2rl.results.suite.tables import comparison
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSpec
from a2rl.sampling.engine_params import VllmParams
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


def test_results_chosen_on_their_items_are_refused_as_such(runs: list[RunSummary]) -> None:
    chosen = [run.model_copy(update={"cross_fitted": run.gain}) for run in runs]
    with pytest.raises(UsageError, match=r"protocol paper.*--protocol strict"):
        compare_stacks("codex", "opus", chosen)
    elsewhere = [run for run in chosen if run.task == "humaneval" or run.settings["agent"] == "claude-code"]
    with pytest.raises(UsageError, match="no finished runs of one task"):
        compare_stacks("codex", "opus", elsewhere)


def launched_later(runs: list[RunSummary], *drivers: str, **changes: Any) -> list[RunSummary]:
    """Returns the runs of gsm8k as if the last one of each of these drivers was launched later, on other items."""
    runs = [run for run in runs if run.task == "gsm8k"]
    last = {max(run.run_id for run in runs if run.settings["driver"] == driver) for driver in drivers}
    later = {"launch": "later", "items_digest": "another draw", **changes}
    return [run.model_copy(update=later) if run.run_id in last else run for run in runs]


@pytest.mark.parametrize(("later", "shown"), [(["opus"], "4 and 3 of 4"), (["gpt-5.4", "opus"], "3 of 4 and 3 of 4")])
def test_runs_on_other_items_are_left_out_and_counted(runs: list[RunSummary], later: list[str], shown: str) -> None:
    pooled = launched_later([run for run in runs if run.settings["driver"] != "sonnet"], *later)
    [row] = compare_stacks("codex", "claude-code", pooled)
    [same] = compare_stacks("codex", "claude-code", [run for run in pooled if run.launch != "later"])
    assert row == same.model_copy(update={"left_out": row.left_out, "other_left_out": row.other_left_out})
    assert shown in [cell.text for cell in comparison("comparison", [row]).rows[0]]
    [board] = boards(pooled)
    assert [cell.marks for cell in board.cells] == ["*", "†"]


def test_a_run_without_a_result_is_on_the_items_of_its_launch(runs: list[RunSummary]) -> None:
    nothing = {"final": None, "ci": None, "gain": 0.0, "gains": ()}
    pooled = launched_later(launched_later(runs, "opus"), "gpt-5.4", **nothing, items_digest="")
    [row] = compare_stacks("codex", "opus", pooled)
    assert (row.runs, row.left_out, row.other_runs, row.other_left_out) == (3, 1, 3, 1)
    [row] = compare_stacks("codex", "opus", launched_later(runs, "gpt-5.4", **nothing, items_digest=""))
    assert (row.runs, row.left_out) == (4, 0)


def test_budgets_in_the_names_of_stacks_are_for_people(settings: Settings) -> None:
    for number, budget_s in enumerate((60.0, 60.25)):
        simulate_run(settings, number, agent="codex", driver=None, budget_s=budget_s)
    names = stack_names(summaries(RunDir.all(settings.runs)).runs)
    assert set(names.values()) == {"codex · budget 1m", "codex · budget 60.25"}


def planned(settings: Settings, suite: str, **given: Any) -> list[RunSpec]:
    params = load_params(settings.root)
    return plan_runs(choose_suite(params, suite, **given), suite, params, settings)


def stacks_of(settings: Settings, specs: list[RunSpec]) -> dict[str, list[str]]:
    """Returns the tasks of each stack of planned runs, as if they had finished."""
    finished = summary_of(simulate_run(settings, 1))
    told = [{"run_id": each.run_id, "settings": each.model_dump(mode="json", include=SETTINGS)} for each in specs]
    names, stacks = stack_names([finished.model_copy(update=each) for each in told]), dict[str, list[str]]()
    for spec in specs:
        stacks.setdefault(names[spec.run_id], []).append(spec.task)
    return stacks


def test_what_follows_from_task_and_model_names_no_stack(settings: Settings) -> None:
    stacks = stacks_of(settings, planned(settings, "paper-scaling", budget="12h"))
    models = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base")
    assert stacks == {f"claude-code · {model}": ["gsm8k", "alfworld"] for model in models}


def test_what_a_preset_decides_names_no_stack(settings: Settings) -> None:
    given = {"variant": "full", "protocol": "strict", "budget": "12h", "model": "Qwen/Qwen3-8B", "backend": "vllm"}
    specs = [each for name in ("none", "paper") for each in planned(settings, "paper-scaling", preset=name, **given)]
    tasks = ["gsm8k", "alfworld"]
    assert stacks_of(settings, specs) == {f"claude-code · preset {name}": tasks for name in ("none", "paper")}


def test_the_number_of_attempts_follows_from_the_mode(settings: Settings) -> None:
    stacks = stacks_of(settings, planned(settings, "paper-modes", tasks=["gsm8k"], mode=["free", "multi"]))
    assert set(stacks) == {"claude-code · free", "claude-code · multi"}


def test_of_the_generation_only_what_differs_is_named(settings: Settings) -> None:
    given = ["temperature=0.6", "temperature=1,chat_template_kwargs.enable_thinking=true"]
    stacks = stacks_of(settings, planned(settings, "real-gpu", model="Qwen/Qwen2.5-7B-Instruct", generation=given))
    names = {"scripted · temperature 0.6", "scripted · temperature 1.0 · chat_template_kwargs enable_thinking true"}
    assert set(stacks) == names
    assert [len(tasks) for tasks in stacks.values()] == [6, 6]


def test_judges_are_named_by_their_names(settings: Settings) -> None:
    tasks = ["alpacaeval", "deepsearchqa"]
    stacks = stacks_of(settings, planned(settings, "real-gpu", tasks=tasks, judge=["gpt-5.2", "gpt-4.1"]))
    assert stacks == {"scripted · judge gpt-5.2": tasks, "scripted · judge gpt-4.1": tasks}


def test_different_judges_of_one_name_are_told_apart(settings: Settings) -> None:
    [spec] = planned(settings, "real-gpu", tasks=["alpacaeval"])
    assert spec.judge is not None
    changed: dict[str, dict[str, Any]] = {
        "dearer": {"dollars_per_million_prompt_tokens": 9.0},
        "other": {"annotator": "weighted"},
    }
    others = [
        spec.model_copy(update={"run_id": name, "judge": spec.judge.model_copy(update=update)})
        for name, update in changed.items()
    ]
    stacks = stacks_of(settings, [spec, *others])
    assert [len(tasks) for tasks in stacks.values()] == [2, 1]
    assert list(stacks)[1] == "scripted · judge annotator weighted"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"options": {"prompts": "faithful"}}, 'scripted · options prompts "faithful"'),
        ({"exact": True}, "scripted · exact True"),
        ({"backend": "vllm", "vllm": VllmParams(dtype="float16")}, "scripted · vllm dtype float16"),
        ({"read": "/opt"}, "scripted · read /opt"),
    ],
)
def test_runs_that_were_graded_by_other_rules_are_other_stacks(
    settings: Settings, changes: dict[str, Any], name: str
) -> None:
    specs = planned(settings, "real-gpu", tasks=["alfworld"], backend=changes.get("backend", "transformers"))
    other = specs[0].model_copy(update={"run_id": "other", **changes})
    stacks = list(stacks_of(settings, [*specs, other]))
    assert len(stacks) == 2
    assert stacks[1] == name
