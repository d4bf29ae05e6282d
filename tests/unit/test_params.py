"""params.yaml: what is in the repository is valid, what is wrong is named."""

from pathlib import Path

import pytest
import yaml

from a2rl.catalog import agent_ids, task_ids
from a2rl.errors import UsageError
from a2rl.params import load_params
from a2rl.plan import choose_grid, plan_runs
from a2rl.settings import Settings


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


def test_the_repositorys_params_are_valid_and_name_tasks_that_exist(repository: Path) -> None:
    params = load_params(repository)
    assert set(params.tasks) <= set(task_ids(repository))
    assert {"smoke", "full-bench"} <= params.suites.keys()
    for grid in params.suites.values():
        assert set(grid.tasks) <= set(task_ids(repository))
        assert all(grid.budget_s(task) > 0 for task in grid.tasks)


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
    grid = choose_grid(params, "smoke", tasks=("gsm8k",), agents=agents, seeds=(1, 2), budget="90s", mode=None)
    specs = plan_runs(grid, "smoke", params, settings)
    assert {(spec.agent, spec.seed) for spec in specs} == {(agent, seed) for agent in agents for seed in (1, 2)}
    assert len({spec.run_id for spec in specs}) == 4
    assert all(spec.budget_s == 90 and spec.split_seed == params.grading.split_seed for spec in specs)


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
        plan_runs(choose_grid(params, "smoke", **{"agents": ("noop",), **overrides}), "smoke", params, settings)
    assert not settings.runs.exists()


def test_an_unknown_suite_is_refused_with_the_nearest(settings: Settings) -> None:
    with pytest.raises(UsageError, match="Did you mean 'smoke'"):
        choose_grid(load_params(settings.root), "smok")
