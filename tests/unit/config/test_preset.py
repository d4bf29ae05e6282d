"""Tests the preset `paper`: one word gives the paper's setting, and what a user gives beside it wins."""

from pathlib import Path
from typing import Any

import pytest

from a2rl.config.params import load_params
from a2rl.config.plan import plan_runs
from a2rl.config.preset import load_preset
from a2rl.config.suite import make_suite, single_run
from a2rl.core.settings import Settings
from a2rl.run.spec import RunSpec
from a2rl.task_api.catalog import load_task

TASKS = ("gsm8k", "humaneval", "alpacaeval", "alfworld", "webshop", "deepsearchqa")
QWEN3 = {"model": "Qwen/Qwen3-8B"}


def planned(settings: Settings, **given: Any) -> RunSpec:
    suite = single_run({"agent": "noop", "preset": "paper", **given})
    [spec] = plan_runs(suite, "runs", load_params(settings.root), settings)
    return spec


def test_one_word_gives_the_papers_setting(settings: Settings) -> None:
    spec = planned(settings, task="gsm8k")
    assert (spec.variant, spec.protocol, spec.budget_s, spec.backend) == ("full", "paper", 12 * 3600, "vllm")
    assert (spec.model, spec.limit, spec.preset) == ("Qwen/Qwen2.5-7B-Instruct", None, "paper")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_own_settings_and_they_exist(settings: Settings, task: str) -> None:
    preset, spec = load_preset("paper"), planned(settings, task=task)
    assert preset is not None
    wanted = preset.of_task(task)
    assert wanted.options.items() <= spec.options.items()
    assert spec.options == load_task(task, settings.root).choose(spec.options)
    assert (spec.judge.model if spec.judge else None) == wanted.judge


@pytest.mark.parametrize(
    ("given", "tokens", "temperature", "strips"),
    [
        ({"task": "gsm8k"}, 512, 0.0, True),
        ({"task": "humaneval"}, 8192, 0.0, True),
        ({"task": "gsm8k", **QWEN3}, 512, 0.6, True),
        ({"task": "humaneval", **QWEN3}, 38912, 0.6, True),
        ({"task": "humaneval", "model": "Qwen/Qwen3-8B-Base"}, 24576, 0.6, True),
        ({"task": "humaneval", "model": "meta-llama/Llama-3.1-8B-Instruct"}, 4096, 0.7, True),
        ({"task": "alfworld", **QWEN3}, None, 0.0, False),
        ({"task": "alpacaeval", **QWEN3}, None, 0.0, False),
    ],
)
def test_models_answer_as_in_the_reference(
    settings: Settings, given: dict[str, Any], tokens: int | None, temperature: float, strips: bool
) -> None:
    found = planned(settings, **given).generation
    assert (found.max_new_tokens, found.temperature, found.strip_reasoning) == (tokens, temperature, strips)


def test_what_a_user_gives_beside_it_wins(settings: Settings) -> None:
    given = {"variant": "mini", "protocol": "strict", "budget": "2m", "model": "tiny", "judge": "local"}
    spec = planned(settings, task="alpacaeval", **(given | {"variant": "full"}))
    assert (spec.protocol, spec.budget_s, spec.model) == ("strict", 120, "tiny")
    assert spec.judge is not None
    assert spec.judge.name == "local"
    assert planned(settings, task="gsm8k", generation="temperature=1").generation.max_new_tokens == 512
    mini = planned(settings, task="alpacaeval", **(given | {"judge": None}))
    assert (mini.variant, mini.judge, mini.generation.temperature) == ("mini", None, 0.0)


def test_in_a_suite_the_same_value_as_the_default_is_given(settings: Settings) -> None:
    grid = {"tasks": ["gsm8k", "alfworld"], "agents": "noop", "preset": "paper"}
    suite = make_suite(
        grid
        | {
            "protocol": "strict",
            "include": [{"task": "alfworld", "budget": "24h"}, {"task": "gsm8k", "variant": "mini"}],
        }
    )
    found = {cell.task: (cell.variant, cell.protocol, cell.budget_s / 3600) for cell in suite.cells()}
    assert found == {"gsm8k": ("mini", "strict", 12), "alfworld": ("full", "strict", 24)}


def test_without_it_nothing_changes(settings: Settings) -> None:
    spec = planned(settings, task="gsm8k", preset="none")
    assert (spec.variant, spec.protocol, spec.budget_s, spec.model) == ("mini", "strict", 120, "tiny")
    assert spec.options == {"prompts": "repaired"}


@pytest.mark.parametrize("task", TASKS)
def test_the_page_has_the_values_of_the_preset(settings: Settings, repository: Path, task: str) -> None:
    page = (repository / "docs" / "paper-preset.md").read_text(encoding="utf-8")
    section = page.partition(f"## {task}\n")[2].partition("\n## ")[0]
    preset, limits = load_preset("paper"), load_task(task, settings.root).variant("full")
    assert preset is not None
    wanted = preset.of_task(task)
    for name, value in wanted.options.items():
        assert f"`{name}: {value}`" in section
    assert wanted.judge is None or f"`judge: {wanted.judge}`" in section
    assert f"{limits.eval_items:,} items" in section
    generation = planned(settings, task=task).generation
    assert f"{generation.max_new_tokens or limits.limits.max_new_tokens:,} new tokens" in section
    if limits.limits.max_steps > 1:
        assert f"{limits.limits.max_steps} steps" in section
