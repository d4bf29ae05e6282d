"""Tests that a run says whether its figures are comparable with the published ones, and every reason why not."""

from typing import Any

import pytest
from markupsafe import escape

from a2rl.cli.results import run_object
from a2rl.config.params import load_params
from a2rl.config.plan import plan_runs
from a2rl.config.suite import single_run
from a2rl.core.settings import Settings
from a2rl.results.comparability import comparability
from a2rl.results.figures import run_tags
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir
from a2rl.run.records import SetupRecord
from a2rl.sampling.generation import Generation

WEIGHTED = "weighted_alpaca_eval_gpt4_turbo"
TASKS = ("gsm8k", "humaneval", "alpacaeval", "alfworld", "webshop", "deepsearchqa")


def run_of(settings: Settings, **given: Any) -> RunDir:
    """Makes a run of an agent of the paper in its setting, with some settings changed."""
    values = {"agent": "claude-code", "driver": "claude-opus-4-6", "preset": "paper", **given}
    [spec] = plan_runs(single_run(values), "runs", load_params(settings.root), settings)
    return RunDir.create(settings.runs, spec)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B"])
def test_no_setting_of_the_preset_differs(settings: Settings, task: str, model: str) -> None:
    found = comparability(run_of(settings, task=task, model=model))
    assert found.settings == ()
    assert str(found).startswith("no: the settings are the same, but there are differences: ")
    assert "(not stated by the paper: GPUs" in str(found)


AGENTS = {
    "claude-code": ("no search and fetch tools", "ends it after 36,000 s", "gpt-5.4, where the reference", "summary"),
    "codex": ("no search tool", "ends it after 36,000 s", "gpt-5.4, where the reference", "summary"),
    "gemini-cli": ("ends it after 36,000 s", "gemini-2.5-pro", "summary"),
    "opencode": ("a fixed pipeline of at most 5 rounds", "starts this agent with gpt-5"),
    "openhands": ("a fixed pipeline of at most 30 rounds", "starts this agent with gpt-5.2"),
    "rd-agent": ("the agent rd-agent, which the paper does not have", "instead of at most 40"),
    "mini-swe-agent": ("the agent mini-swe-agent, which the paper does not have",),
}
ALWAYS = ("network has nothing but its LLM", "a prompt and instructions", "at most 100 submissions", "LoRA")


@pytest.mark.parametrize("agent", AGENTS)
def test_what_differs_on_the_agents_side_is_named(settings: Settings, agent: str) -> None:
    found = comparability(run_of(settings, task="gsm8k", agent=agent, driver="gpt-5.4"))
    for part in (*AGENTS[agent], *ALWAYS):
        assert any(part in each for each in found.reasons), (part, found.reasons)


def test_a_difference_that_a_setting_removes_is_not_named(settings: Settings) -> None:
    run = run_of(settings, task="gsm8k", driver="claude-sonnet-4-6", sandbox="none", merge_adapters=False, budget="10h")
    for gone in ("network", "starts this agent", "LoRA", "36,000 s", "4,096"):
        assert not any(gone in each for each in comparability(run).differs), gone
    open_to = comparability(run_of(settings, task="gsm8k", hosts="mirror.example"))
    assert any("its LLM and mirror.example" in each for each in open_to.differs)


@pytest.mark.parametrize("task", ["alpacaeval", "deepsearchqa"])
def test_another_context_is_named(settings: Settings, task: str) -> None:
    assert any("4,096 tokens" in each for each in comparability(run_of(settings, task=task)).differs)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"variant": "mini"}, "mini data"),
        ({"limit": 64}, "a sample of 64 items"),
        ({"protocol": "strict"}, "the strict protocol: half of the eval set"),
        ({"model": "Qwen/Qwen3-0.6B"}, "the base model Qwen/Qwen3-0.6B"),
        ({"agent": "mini-swe-agent"}, "the agent mini-swe-agent"),
        ({"driver": "gpt-9"}, "the driver gpt-9"),
        ({"mode": "rl-only"}, "the mode rl-only"),
        ({"budget": "1h"}, "a budget of 1h instead of 12h"),
        ({"max_turns": 5}, "--max-turns 5"),
        ({"max_tokens": 1_234_567}, "--max-tokens 1,234,567,"),
        ({"max_grading": "90m"}, "--max-grading 1h30m,"),
        ({"max_cost_usd": 1.5}, "--max-cost-usd 1.5"),
        ({"generation": "temperature=1"}, "sampled at temperature 1"),
        ({"generation": "max_new_tokens=8192"}, "at most 8,192 new tokens"),
        ({"task": "alpacaeval", "judge": "gpt-4.1"}, "the judge gpt-4.1 instead of gpt-5.2"),
    ],
)
def test_each_thing_that_differs_is_a_reason(settings: Settings, given: dict[str, Any], reason: str) -> None:
    found = comparability(run_of(settings, **{"task": "gsm8k", **given}))
    assert any(reason in each for each in found.reasons), found.reasons
    assert str(found).startswith("no, because of ")


def test_prompts_engine_and_generation_of_defaults_are_reasons(settings: Settings) -> None:
    given = {"variant": "full", "protocol": "paper", "budget": "12h", "model": "Qwen/Qwen2.5-7B-Instruct"}
    reasons = comparability(run_of(settings, task="gsm8k", preset="none", **given)).settings
    assert [reason.split()[0] for reason in reasons] == ["prompts", "answers", "answers"]


def test_what_greedy_answers_ignore_is_no_reason(settings: Settings) -> None:
    run = run_of(settings, task="alfworld", generation="top_k=1,top_p=0.5")
    assert run.spec.generation != Generation()
    assert comparability(run).settings == ()


def test_another_annotator_of_the_same_judge_is_a_reason(settings: Settings) -> None:
    """Weighted preferences give other win rates than binary ones."""
    params = load_params(settings.root)
    judges = params.judges | {"gpt-5.2": params.judges["gpt-5.2"].model_copy(update={"annotator": WEIGHTED})}
    values = {"agent": "claude-code", "driver": "claude-opus-4-6", "preset": "paper", "task": "alpacaeval"}
    [spec] = plan_runs(single_run(values), "runs", params.model_copy(update={"judges": judges}), settings)
    found = comparability(RunDir.create(settings.runs, spec))
    assert found.settings == (f"the annotator {WEIGHTED} instead of alpaca_eval_gpt5_2_fn",)


def test_every_place_says_it(run: RunDir, settings: Settings) -> None:
    write_report(run, settings)
    said = str(comparability(run))
    page = run.report.read_text()
    assert "Comparable with the published figures: no, for " in page
    assert "<li>mini data</li>" in page
    assert all(escape(reason) in page for reason in comparability(run).reasons)
    assert run_tags(run, run.need("setup", SetupRecord))["a2rl.comparable"] == said
    facts = run_object(run)
    assert facts["comparable"] is False
    assert "mini data" in facts["not_comparable_because"]
