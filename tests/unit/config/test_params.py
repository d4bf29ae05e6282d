"""Tests params.yaml: the repository's file is valid, and errors name the wrong key."""

from pathlib import Path

import pytest
import yaml

from a2rl.agent_systems.definition import agent_ids
from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.task_api.catalog import is_of_package, task_ids


def write(folder: Path, repository: Path, **changes: object) -> Path:
    values = yaml.safe_load((repository / "params.yaml").read_text())
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values[section] = {**values[section], name: value}
        else:
            values[section] = value
    (folder / "params.yaml").write_text(yaml.safe_dump(values))
    return folder


def test_the_repositorys_params_are_valid_and_their_tasks_exist(repository: Path) -> None:
    params = load_params(repository)
    assert set(params.tasks) <= set(task_ids(repository))
    assert {"smoke", "full-bench"} <= params.suites.keys()
    for grid in params.suites.values():
        assert {task for task in grid.tasks if not is_of_package(task)} <= set(task_ids(repository))
        assert all(cell.budget_s > 0 for cell in grid.cells())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"graders": 1}, "graders"),
        ({"grading__backnd": "vllm"}, r"grading\.backnd"),
        ({"grading__backend": "llama"}, r"grading\.backend"),
        ({"tiny__sed": 1}, r"tiny\.sed"),
        ({"suites": {"smoke": {"tasks": ["gsm8k"], "agents": ["noop"], "seds": [1]}}}, r"suites\.smoke\.seds"),
        ({"suites": {"smoke": {"tasks": ["gsm8k"]}}}, r"suites\.smoke\.agents"),
        ({"suites": {"smoke": {"tasks": ["gsm8k"], "agents": [], "mode": "wild"}}}, r"suites\.smoke\.mode"),
        (
            {"suites": {"smoke": {"tasks": "gsm8k", "agents": "noop", "budget": "1m", "budgets": {"gsm8k": "1h"}}}},
            r"suites\.smoke\.budgets: no such setting",
        ),
        (
            {"suites": {"smoke": {"tasks": "gsm8k", "agents": "noop", "budgets": {"gsm8k": "1h"}}}},
            r"suites\.smoke\.budgets\.0: .* is not a duration",
        ),
        (
            {"suites": {"smoke": {"tasks": "gsm8k", "agents": "noop", "exclude": [{"agent": ["noops", "x"]}]}}},
            "exclude leaves out nothing with agent noops or x",
        ),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_its_name(
    tmp_path: Path, repository: Path, changes: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        load_params(write(tmp_path, repository, **changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "tasks: [", "just words"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"params\.yaml"):
        load_params(tmp_path)


def test_a_grid_is_every_task_with_every_agent_and_every_seed(settings: Settings) -> None:
    params = load_params(settings.root)
    agents = ("noop", "copy-base")
    assert set(agents) <= set(agent_ids(settings.root))
    grid = choose_suite(params, "smoke", tasks=("gsm8k",), agents=agents, seeds=(1, 2), budget="90s", mode=None)
    specs = plan_runs(grid, "smoke", params, settings)
    assert {(spec.agent, spec.seed) for spec in specs} == {(agent, seed) for agent in agents for seed in (1, 2)}
    assert len({spec.run_id for spec in specs}) == 4
    assert all(spec.budget_s == 90 for spec in specs)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"mode": "fre"}, "no mode 'fre'. Did you mean 'free'"),
        ({"protocol": "papr"}, "Did you mean 'paper'"),
        ({"sandbox": "landlok"}, "Did you mean 'landlock'"),
        ({"variant": "huge"}, "Known: full, mini"),
        ({"budget": "soon"}, "not a duration"),
        ({"agents": ("nop",)}, "Did you mean 'noop'"),
        ({"tasks": ("gsm",)}, "Did you mean 'gsm8k'"),
        ({"source": "/somewhere"}, "--source is for the full variant"),
        ({"concurrency": "many"}, "concurrency"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_starts(
    settings: Settings, overrides: dict[str, object], says: str
) -> None:
    params = load_params(settings.root)
    with pytest.raises(UsageError, match=says):
        plan_runs(choose_suite(params, "smoke", **{"agents": ("noop",), **overrides}), "smoke", params, settings)
    assert not settings.runs.exists()


def test_an_unknown_suite_is_refused_with_the_nearest(settings: Settings) -> None:
    with pytest.raises(UsageError, match="Did you mean 'smoke'"):
        choose_suite(load_params(settings.root), "smok")


def full(repository: Path, tasks: list[str], judge: str | None) -> list[tuple[str, str | None]]:
    """Returns task and judge's name of each planned run of the full variant."""
    params, settings = load_params(repository), Settings(repository, {})
    suite = choose_suite(params, "smoke", tasks=tasks, variant="full", judge=judge)
    return [
        (spec.task, spec.judge.name if spec.judge else None) for spec in plan_runs(suite, "smoke", params, settings)
    ]


def test_each_task_has_its_judge_and_a_run_may_name_another(repository: Path) -> None:
    tasks = ["gsm8k", "alpacaeval", "deepsearchqa"]
    own = [("gsm8k", None), ("alpacaeval", "gpt-5.2"), ("deepsearchqa", "gemini-2.5-flash")]
    assert full(repository, tasks, None) == own
    assert full(repository, tasks, "local") == [("gsm8k", None), ("alpacaeval", "local"), ("deepsearchqa", "local")]
    annotator = "weighted_alpaca_eval_gpt-4o-mini-2024-07-18"
    assert full(repository, ["alpacaeval"], annotator) == [("alpacaeval", annotator)]


@pytest.mark.parametrize(
    ("tasks", "judge", "says"),
    [
        (["alpacaeval"], "gpt-5", "no judge 'gpt-5'. Did you mean"),
        (["gsm8k"], "local", "no judge grades gsm8k"),
        (["deepsearchqa"], "alpaca_eval_gpt5_2_fn", "has no model"),
        (["alpacaeval"], "./no-such-folder", "no annotator"),
    ],
)
def test_an_impossible_judge_is_refused_before_anything_starts(
    repository: Path, tasks: list[str], judge: str, says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        full(repository, tasks, judge)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_limit_for_an_unused_or_priceless_judge_is_refused(repository: Path) -> None:
    """It is not asked, or its price is unknown."""
    params, settings = load_params(repository), Settings(repository, {})
    for options, says in (
        ({"tasks": ["gsm8k"], "max_judge_usd": 1.0}, "--max-judge-usd: no judge grades gsm8k"),
        ({"tasks": ["alpacaeval"], "judge": "claude_ranking"}, "another kind of API"),
        (
            {"tasks": ["alpacaeval"], "judge": "chatgpt_fn", "max_judge_usd": 1.0},
            "needs the prices of the judge chatgpt_fn",
        ),
    ):
        with pytest.raises(UsageError, match=says):
            plan_runs(choose_suite(params, "smoke", variant="full", **options), "smoke", params, settings)


def test_every_judge_of_the_repository_can_be_used(repository: Path) -> None:
    from a2rl.task_api.catalog import load_task

    params = load_params(repository)
    for name, judge in params.judges.items():
        for task in ("alpacaeval", "deepsearchqa"):
            if judge.model or judge.serve or task == "alpacaeval":
                found = params.judge_for(load_task(task, repository), "full", name)
                assert found is not None
                assert found.model
