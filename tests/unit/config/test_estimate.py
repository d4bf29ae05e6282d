"""Tests the estimates of a suite's cost and of its smallest gains, by simulation of the verdict."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from a2rl.cli.commands import app
from a2rl.config.estimate import estimate, model_size, smallest_gain
from a2rl.config.suite import make_suite
from a2rl.core.settings import Settings
from a2rl.models.checkpoint import parameters_in_name
from a2rl.run.disk import MARGIN
from a2rl.scoring.paired import compare
from a2rl.scoring.score import ItemResult


def results(values: list[float]) -> list[ItemResult]:
    return [
        ItemResult(id=str(place), verdict="correct" if value else "wrong", value=value)
        for place, value in enumerate(values)
    ]


def is_improved(gained: int, lost: int, items: int) -> bool:
    same = [0.0] * (items - gained - lost)
    found = compare(results([0.0] * gained + [1.0] * lost + same), results([1.0] * gained + [0.0] * lost + same))
    return found is not None and found.ci.low > 0


@pytest.mark.parametrize("items", [6, 50, 67, 100])
def test_the_smallest_gain_is_the_least_that_counts_as_improved(items: int) -> None:
    gain = smallest_gain(items)
    assert gain is not None
    gained = round(gain * items / 100)
    assert is_improved(gained, 0, items)
    assert not is_improved(gained - 1, 0, items)


def test_too_few_items_can_show_nothing() -> None:
    assert smallest_gain(5) is None


def test_more_items_show_smaller_gains() -> None:
    gains = [smallest_gain(items) for items in (50, 100, 200, 660)]
    assert None not in gains
    assert gains == sorted(gains, reverse=True)  # type: ignore[type-var]


def test_the_size_of_a_model_comes_from_its_files_or_its_name(settings: Settings, base_model: Path) -> None:
    """Otherwise it is unknown."""
    here = model_size(str(base_model), settings)
    assert here.bytes == sum(path.stat().st_size for path in base_model.glob("*.safetensors"))
    assert here.source == "on this machine"
    assert model_size("nobody/Model-0.5B-Instruct", settings).bytes == 1_000_000_000
    assert model_size("nobody/a-model", settings).bytes is None
    assert model_size("tiny", settings).bytes is None  # not built


def test_an_estimate_adds_up_and_is_unknown_where_a_size_is(settings: Settings) -> None:
    grid = {"tasks": ["gsm8k", "humaneval"], "agents": ["noop"], "seeds": [0, 1, 2], "budget": "2h", "concurrency": 4}
    found = estimate("mine", make_suite(grid | {"model": "nobody/Model-1B", "max_submissions": 2}), settings)
    assert (found.runs, found.agent_hours, found.wall_hours) == (6, 12, 4)
    assert found.disk_bytes == 2_000_000_000 * (1 + 6 * (2 + 2) + 4 * 2) + MARGIN
    assert [(each.task, each.items) for each in found.tasks] == [("gsm8k", 200), ("humaneval", 120)]
    assert estimate("mine", make_suite(grid | {"model": "nobody/a-model"}), settings).disk_bytes is None


def test_protocols_decide_by_the_held_out_half_or_by_all(settings: Settings) -> None:
    """The strict protocol decides by the held-out half, the paper protocol by all items."""
    suite = make_suite({"tasks": "gsm8k", "agents": "noop", "variant": "full", "protocol": ["strict", "paper"]})
    assert [each.items for each in estimate("mine", suite, settings).tasks] == [660, 1319]


def test_a_dry_run_starts_nothing_and_needs_no_agent_or_model(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setenv("PATH", "/nowhere")
    done = CliRunner().invoke(app, ["bench", "paper-main", "--task", "gsm8k", "--dry-run", "--json"])
    assert done.exit_code == 0, done.output
    assert not settings.runs.exists()
    assert "claude-opus-4-6" in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["runs"], found["agent_hours"], len(found["grid"])) == (5, 60, 5)
    assert {run["driver"] for run in found["grid"]} == {"claude-opus-4-6", "gpt-5.4", "gemini-2.5-flash"}
    assert found["tasks"][0]["items"] == 1319


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen2.5-0.5B", 500_000_000),
        ("HuggingFaceTB/SmolLM2-135M@main", 135_000_000),
        ("mistralai/Mixtral-8x7B-v0.1", 56_000_000_000),
        ("nobody/Phi-mini", None),
    ],
)
def test_a_models_name_says_how_many_parameters_it_has(model: str, parameters: int | None) -> None:
    assert parameters_in_name(model) == parameters


def test_a_dry_run_says_what_may_not_fit_on_the_disk(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    monkeypatch.setattr("a2rl.run.disk.shutil.disk_usage", lambda _: SimpleNamespace(free=64_000_000_000))
    command = ["bench", "paper-main", "--task", "gsm8k", "--model", "nobody/Model-1B", "--dry-run", "--json"]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert "disk         about 206.5 GB: each base model once" in done.stdout
    assert "nobody/Model-1B: 2.0 GB, by its name" in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["disk_shortage"] in done.stdout
    assert "these 5 runs take up to 204.5 GB" in found["disk_shortage"]


def test_a_dry_run_refuses_what_a_run_would_refuse(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    done = CliRunner().invoke(app, ["bench", "smoke", "--task", "gsm", "--dry-run"])
    assert "Did you mean 'gsm8k'" in str(done.exception)


def test_a_dry_run_says_how_long_short_runs_take(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    options = ["--task", "gsm8k", "--seed", "0", "--seed", "1", "--budget", "80s", "--concurrency", "1"]
    done = CliRunner().invoke(app, ["bench", "smoke", *options, "--dry-run"])
    assert "agent time   2m40s, the sum of the budgets" in done.stdout
    assert "wall time    2m40s if each agent uses its whole budget" in done.stdout


def test_a_dry_run_says_what_a_sample_can_show(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    options = ["--task", "gsm8k", "--limit", "64", "--limit", "1319", "--dry-run", "--json"]
    done = CliRunner().invoke(app, ["bench", "paper-main", *options], env={"COLUMNS": "200"})
    assert "64, sample of 64 of 1,319" in done.stdout
    small, whole = json.loads(done.stdout.splitlines()[-1])["tasks"]
    assert (small["items"], small["sample"], whole["items"], whole["sample"]) == (64, "sample of 64 of 1,319", 1319, "")
    assert small["smallest_gain"] > whole["smallest_gain"]


@pytest.mark.parametrize("command", ["run", "doctor", "rehearse"])
def test_a_command_says_where_the_name_of_a_task_belongs(command: str) -> None:
    done = CliRunner().invoke(app, [command, "webshop"])
    assert "a task is --task webshop" in str(done.exception)
