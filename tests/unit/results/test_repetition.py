"""Tests the comparison of a run with one that repeats it."""

from pathlib import Path
from typing import cast

import pytest

from a2rl.cli.launching import repetition
from a2rl.config.plan import plan_again
from a2rl.core.settings import Settings
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSpec
from tests.run_maker import FakePool, checkout, make_run, spec, submit_checkpoint
from tests.small_model import build_base_model, trained_copy


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


def test_runs_with_equal_weights_and_scores_are_the_same(twins: Twins) -> None:
    """Other versions are named."""
    for run in (twins.one, twins.other):
        twins.submit(run, 1, 2)
    found = repetition(twins.one, twins.other)
    assert found.is_same
    assert found.changed == ("a2rl: 0 before, 1 now",)


def test_other_weights_and_missing_submissions_are_differences(twins: Twins) -> None:
    twins.submit(twins.one, 1, 2)
    twins.submit(twins.other, 3)
    found = repetition(twins.one, twins.other)
    assert not found.is_same
    assert [each.is_same for each in found.submissions] == [False, False]
    assert found.submissions[1].weights_again == ""


def test_two_runs_without_submissions_repeat_nothing(twins: Twins) -> None:
    assert not repetition(twins.one, twins.other).is_same


def test_a_repetition_has_all_settings_of_the_first_run(repository: Path) -> None:
    """It says which run it repeats."""
    first = spec(agent="scripted", steps=7, seed=5, split_seed=99, suite="paper-main")
    again = plan_again(first, Settings(repository, {}))
    new = {"run_id", "suite", "launch", "versions", "git_commit", "created_at", "repeats"}
    assert (again.repeats, again.suite) == (first.run_id, "runs")  # the suite's report does not count it as a seed
    assert again.run_id != first.run_id
    assert {name for name in RunSpec.model_fields if getattr(again, name) != getattr(first, name)} <= new
