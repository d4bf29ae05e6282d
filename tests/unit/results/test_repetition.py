"""Tests the comparison of a run with one that repeats it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from a2rl import __version__
from a2rl.cli.launching import _show_repetition
from a2rl.config.plan import plan_again
from a2rl.core.settings import Settings
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSpec
from tests.run_maker import FakePool, checkout, make_run, spec, submit_checkpoint
from tests.small_model import build_base_model, trained_copy

Compare = Callable[[], tuple[str, dict[str, Any]]]


class Twins:
    """Two runs of one checkout."""

    def __init__(self, folder: Path) -> None:
        self.settings = checkout(folder)
        base = self.base = build_base_model(folder / "models" / "small")
        self.one = make_run(self.settings, base, run_id="gsm8k-test-1")
        self.other = make_run(self.settings, base, run_id="gsm8k-test-2", versions={"a2rl": "1"})

    def submit(self, run: RunDir, *seeds: int) -> None:
        service = GradingService(run, cast(GraderPool, FakePool()))
        for seed in seeds:
            trained_copy(self.base, run.workspace / "output" / f"v{seed}", seed)
            submit_checkpoint(service, f"output/v{seed}")


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    return Twins(tmp_path)


@pytest.fixture
def compare(twins: Twins, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Returns what is said of the two runs, and the JSON."""

    def compare() -> tuple[str, dict[str, Any]]:
        _show_repetition(twins.one, twins.other, as_json=True)
        said, _, found = capsys.readouterr().out.strip().rpartition("\n")
        return said, json.loads(found)

    return compare


def test_runs_with_equal_weights_and_scores_are_the_same(twins: Twins, compare: Compare) -> None:
    """Other versions are named."""
    for run in (twins.one, twins.other):
        twins.submit(run, 1, 2)
    said, found = compare()
    assert said.splitlines() == [
        "the same weights and scores in all 2 submissions as gsm8k-test-1",
        f"a2rl: {__version__} before, 1 now",
    ]
    assert (found["run_id"], found["again"]) == ("gsm8k-test-1", "gsm8k-test-2")
    assert found["same"]
    assert found["changed"] == [f"a2rl: {__version__} before, 1 now"]


def test_other_weights_and_missing_submissions_are_differences(twins: Twins, compare: Compare) -> None:
    twins.submit(twins.one, 1, 2)
    twins.submit(twins.other, 3)
    said, found = compare()
    assert not found["same"]
    first, second = found["submissions"]
    assert list(first) == ["number", "weights", "weights_again", "score", "score_again"]
    assert first["weights"] != first["weights_again"]
    assert (second["number"], second["weights_again"], second["score_again"]) == (2, "", None)
    assert second["weights"][:16] in said


def test_two_runs_without_submissions_repeat_nothing(compare: Compare) -> None:
    said, found = compare()
    assert not found["same"]
    assert said.startswith("neither this run nor gsm8k-test-1 has submissions")


def test_a_repetition_has_all_settings_of_the_first_run(repository: Path) -> None:
    """It says which run it repeats."""
    first = spec(agent="scripted", steps=7, seed=5, split_seed=99, suite="paper-main")
    again = plan_again(first, Settings(repository, {}))
    new = {"run_id", "suite", "launch", "versions", "git_commit", "created_at", "repeats"}
    assert (again.repeats, again.suite) == (first.run_id, "runs")  # the suite's report does not count it as a seed
    assert again.run_id != first.run_id
    assert {name for name in RunSpec.model_fields if getattr(again, name) != getattr(first, name)} <= new
