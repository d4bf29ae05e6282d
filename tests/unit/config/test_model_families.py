"""Tests which family of models answers how."""

import json
from pathlib import Path
from typing import Any

import pytest

from a2rl.config.params import load_params
from a2rl.config.plan import plan_runs
from a2rl.config.preset import parsed, resolved
from a2rl.config.suite import make_suite, single_run
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.run.spec import RunSpec
from a2rl.sampling.generation import Generation

THINKING = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "max_new_tokens": 38912,
    "chat_template_kwargs": {"enable_thinking": True},
    "strip_reasoning": True,
    "samples": 1,
}


def planned(settings: Settings, **given: Any) -> RunSpec:
    [spec] = plan_runs(single_run({"agent": "noop", **given}), "runs", load_params(settings.root), settings)
    return spec


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", "Qwen/Qwen3-1.7B@abc", "Qwen/Qwen3-4B"])
def test_qwen3_thinks_where_the_reference_lets_it(settings: Settings, model: str) -> None:
    spec = planned(settings, task="gsm8k", variant="full", model=model)
    fits = {"max_new_tokens": 24576} if model.endswith("Base") else {}  # into its context of 32,768 tokens
    assert spec.generation.model_dump() == THINKING | fits


@pytest.mark.parametrize(
    "given",
    [
        {"task": "gsm8k"},  # the mini variant
        {"task": "alfworld", "variant": "full", "model": "Qwen/Qwen3-8B"},
        {"task": "gsm8k", "variant": "full", "model": "Qwen/Qwen2.5-7B-Instruct"},
        {"task": "gsm8k", "variant": "full", "model": "Qwen/Qwen3-4B-Instruct-2507"},  # does not think
        {"task": "gsm8k", "variant": "full", "model": "tiny"},
    ],
)
def test_everything_else_answers_greedily_within_the_task_limit(settings: Settings, given: dict[str, Any]) -> None:
    assert planned(settings, **given).generation == Generation()


@pytest.mark.parametrize(
    ("config", "template", "thinks"),
    [
        ('{"model_type": "qwen3"}', "{% if enable_thinking %}", True),
        ('{"model_type": "qwen3"}', "{{ messages }}", False),
        ('{"model_type": "qwen2"}', "{% if enable_thinking %}", False),
        ("[", "{% if enable_thinking %}", False),
        ("[]", "", False),
    ],
)
@pytest.mark.parametrize("in_file", [True, False])
def test_a_folder_is_recognised_by_its_files(
    settings: Settings, tmp_path: Path, config: str, template: str, thinks: bool, in_file: bool
) -> None:
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    (folder / "config.json").write_text(config)
    if in_file:
        (folder / "chat_template.jinja").write_text(template)
    else:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    spec = planned(settings, task="humaneval", variant="full", model=str(folder))
    assert (spec.generation.temperature == 0.6) is thinks


@pytest.mark.parametrize("preset", ["none", "paper"])
@pytest.mark.parametrize(("name", "context"), [("Qwen3-8B-Base", 32768), ("Qwen3-8B", 40960)])
def test_a_folder_answers_as_the_model_does_by_its_hub_id(
    settings: Settings, tmp_path: Path, name: str, context: int, preset: str
) -> None:
    config = {"model_type": "qwen3", "max_position_embeddings": context}
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / name / "chat_template.jinja").write_text("{% if enable_thinking %}")
    of_folder, of_hub = (
        planned(settings, task="humaneval", variant="full", model=model, preset=preset).generation
        for model in (str(tmp_path / name), f"Qwen/{name}")
    )
    assert of_folder == of_hub
    assert (of_folder.max_new_tokens or 0) < context


def test_what_a_suite_gives_wins_over_the_family(settings: Settings) -> None:
    given = {"temperature": 1.0, "samples": 4}
    suite = make_suite(
        {"tasks": "gsm8k", "agents": "noop", "variant": "full", "model": "Qwen/Qwen3-8B", "generation": given}
    )
    [spec] = plan_runs(suite, "mine", load_params(settings.root), settings)
    assert spec.generation.model_dump() == THINKING | given
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_generation_can_be_an_axis_and_differ_between_tasks() -> None:
    suite = make_suite(
        {
            "tasks": ["gsm8k", "humaneval"],
            "agents": "noop",
            "generation": [{}, "temperature=0.7"],
            "include": [{"task": "humaneval", "generation": {"temperature": 0.7}, "limit": 8}],
        }
    )
    found = {(cell.task, cell.generation.temperature): cell.limit for cell in suite.cells()}
    assert found == {("gsm8k", 0.0): None, ("gsm8k", 0.7): None, ("humaneval", 0.0): None, ("humaneval", 0.7): 8}


def test_settings_that_do_not_fit_are_refused_in_one_line(settings: Settings) -> None:
    with pytest.raises(UsageError, match=r"gsm8k: .*need a temperature above 0"):
        planned(settings, task="gsm8k", generation="samples=4")
    with pytest.raises(UsageError, match=r"--generation: .*form name=value"):
        parsed("greedy")
    with pytest.raises(UsageError, match="generation"):
        single_run({"task": "gsm8k", "agent": "noop", "generation": "temperature=-1"})


def test_the_first_rule_that_fits_counts(settings: Settings) -> None:
    rules = load_params(settings.root).grading.generation
    other = rules[0].model_copy(update={"generation": Generation(temperature=0.1)})
    for order, temperature in (((*rules, other), 0.6), ((other, *rules), 0.1)):
        assert resolved(Generation(), "gsm8k", "full", "Qwen/Qwen3-8B-Base", order).temperature == temperature
