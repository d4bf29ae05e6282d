"""Tests that a merged adapter is a submission like any other: in ledger, grading, report and verify."""

import shutil
from pathlib import Path
from typing import cast

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.settings import Settings
from a2rl.grading.adapters import check_adapter
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.models.checkpoint import weights_digest
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.results.verify import verify_run
from a2rl.run.events import SubmissionAccepted, SubmissionRefused
from stages.grade import grade
from tests.run_maker import FakePool, checkout, end_agent, grade_private, make_run, submit_checkpoint
from tests.small_model import trained_copy
from tests.unit.grading.test_adapters import write_adapter


def merge_without_process(settings: Settings, adapter: Path, base_model: Path, target: Path) -> str:
    """Checks the adapter, and writes the same trained copy of the base model each time."""
    about = str(check_adapter(adapter, base_model))
    trained_copy(base_model, target / "merged", seed=5)
    for path in (target / "merged").iterdir():
        path.rename(target / path.name)
    (target / "merged").rmdir()
    return about


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "checkout").mkdir()
    return checkout(tmp_path / "checkout")


def test_a_merged_adapter_is_graded_kept_and_verified(
    settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says so."""
    monkeypatch.setattr("a2rl.grading.receiving.merge_adapter", merge_without_process)
    run = make_run(settings, base_model)
    service = GradingService(run, cast(GraderPool, FakePool()))
    write_adapter(run.workspace / "output" / "v1")
    accepted, graded = submit_checkpoint(service, "output/v1").outcome.result(60)
    assert graded.weights_digest == accepted.weights_digest
    assert [event.adapter for event in run.ledger.events(SubmissionAccepted)] == ["LoRA adapter of rank 2 on 2 layers"]
    shutil.rmtree(run.workspace / "output" / "v1")
    assert weights_digest(run.checkpoint(accepted.weights_digest)) == accepted.weights_digest
    end_agent(run)
    grade_private(run)
    grade(run, settings)
    write_report(run, settings)
    Tracker(settings).sync(run)
    assert "LoRA adapter of rank 2 on 2 layers, merged by the grader" in run.report.read_text()
    assert not [check for check in verify_run(run, Tracker(settings)) if check.problem]


def test_a_run_without_merging_refuses_adapters(settings: Settings, base_model: Path) -> None:
    run = make_run(settings, base_model, merge_adapters=False)
    service = GradingService(run, cast(GraderPool, FakePool()))
    write_adapter(run.workspace / "output" / "v1")
    with pytest.raises(InvalidSubmissionError, match=r"LoRA adapter; the grader needs.*merge_and_unload"):
        submit_checkpoint(service, "output/v1").outcome.result(60)
    assert len(run.ledger.events(SubmissionRefused)) == 1
    assert not list(run.checkpoints.glob(".incoming-*"))


def test_a_resumed_run_of_an_earlier_version_merges_adapters(settings: Settings, base_model: Path) -> None:
    from a2rl.run.spec import RunSpec

    run = make_run(settings, base_model)
    old = run.spec.model_dump(mode="json")
    del old["merge_adapters"]
    assert RunSpec.model_validate(old).merge_adapters
