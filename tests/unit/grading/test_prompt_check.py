"""Tests that a base model that cannot take a task's prompts is refused before a run, with the numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import TaskDefinitionError, UsageError
from a2rl.core.settings import Settings
from a2rl.execution.preflight import examine_runs
from a2rl.grading.prompt_check import check_prompts, context_of, has_chat_template
from a2rl.run.spec import RunSpec
from a2rl.sampling.engine_params import VllmParams
from a2rl.sampling.generation import Generation
from tests.run_maker import make_hidden, spec


@pytest.fixture
def model(tmp_path: Path, base_model: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(base_model, folder)
    return folder


@pytest.fixture
def hidden(settings: Settings) -> Path:
    return make_hidden(settings.data("gsm8k", "mini") / "hidden", items=4)


def with_config(model: Path, **changes: Any) -> Path:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changes))
    return model


def without_template(model: Path) -> Path:
    about = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(about | {"chat_template": None}))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    return model


def with_template(model: Path) -> Path:
    (model / "chat_template.jinja").write_text("{{ messages }}")
    return model


def test_a_context_that_is_too_short_is_refused_with_the_numbers(settings: Settings, model: Path, hidden: Path) -> None:
    """It has to hold a prompt and its answer."""
    found = check_prompts(spec(), "mine", with_config(model, max_position_embeddings=4096), hidden, settings.root)
    needed = int(found.split()[0])
    assert 96 < needed < 300
    check_prompts(spec(), "mine", with_config(model, max_position_embeddings=needed), hidden, settings.root)
    short = with_config(model, max_position_embeddings=needed - 1)
    with pytest.raises(
        UsageError, match=f"of mine has {needed - 1} tokens, and gsm8k needs {needed}: .* 96 for the answer"
    ):
        check_prompts(spec(), "mine", short, hidden, settings.root)
    fewer = spec(generation=Generation(max_new_tokens=95))
    assert check_prompts(fewer, "mine", short, hidden, settings.root) == f"{needed - 1} of {needed - 1} tokens"


def test_a_task_whose_prompts_fail_is_its_authors_to_mend(
    settings: Settings, model: Path, hidden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.gsm8k.grade.prompt", lambda *_: dict[str, str]()["question"])
    with pytest.raises(TaskDefinitionError, match=r"the task gsm8k failed: grade\.py, line .* KeyError: 'question'"):
        check_prompts(spec(), "mine", model, hidden, settings.root)


def test_the_limit_that_vllm_is_given_counts_too(model: Path) -> None:
    limited = VllmParams(max_model_len=100)
    with_config(model, max_position_embeddings=131_072)
    assert context_of(spec(backend="vllm", vllm=limited), model, 512) == 100
    assert context_of(spec(vllm=limited), model, 512) == 131_072
    assert context_of(spec(backend="vllm"), model, 512) == 32_768
    assert context_of(spec(backend="vllm"), model, 38_912) == 47_104


def test_arguments_for_a_missing_chat_template_are_refused(settings: Settings, model: Path, hidden: Path) -> None:
    thinking = spec(generation=Generation(chat_template_kwargs={"enable_thinking": True}))
    with pytest.raises(UsageError, match="no chat template, which enable_thinking"):
        check_prompts(thinking, "mine", without_template(model), hidden, settings.root)
    assert not has_chat_template(model)
    assert check_prompts(thinking, "mine", with_template(model), hidden, settings.root)
    assert has_chat_template(model)


@pytest.mark.parametrize("task", ["alfworld", "webshop"])
def test_episodes_need_room_for_one_answer_at_least(settings: Settings, model: Path, task: str, hidden: Path) -> None:
    assert check_prompts(spec(task=task), "mine", with_config(model, max_position_embeddings=99), hidden, settings.root)
    with pytest.raises(UsageError, match="has 9 tokens"):
        check_prompts(spec(task=task), "mine", with_config(model, max_position_embeddings=9), hidden, settings.root)


def test_what_cannot_be_told_is_no_problem(settings: Settings, model: Path, hidden: Path, tmp_path: Path) -> None:
    assert check_prompts(spec(), "mine", model, tmp_path / "nowhere", settings.root) == ""
    (model / "tokenizer.json").write_text("{")
    assert check_prompts(spec(), "mine", model, hidden, settings.root) == ""
    (model / "config.json").unlink()
    assert check_prompts(spec(), "mine", model, hidden, settings.root) == ""


def test_the_preflight_and_the_doctor_say_so_before_any_run(settings: Settings, model: Path, hidden: Path) -> None:
    run: RunSpec = spec(model=str(with_config(model, max_position_embeddings=50)), agent="noop", sandbox="none")
    [problem] = [each.problem for each in examine_runs([run], settings) if each.problem]
    assert "has 50 tokens" in problem
    assert "\n" not in problem
