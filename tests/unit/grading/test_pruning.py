"""Tests what stays of a run's checkpoints, and that no run loses one that it still needs."""

from pathlib import Path
from typing import cast

import pytest

from a2rl.core.settings import Settings
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.grading.submission_states import invalid_pruning, prune, unneeded
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.results.verify import verify_run
from a2rl.run.directory import RunDir
from a2rl.run.events import CheckpointPruned, SubmissionAccepted
from a2rl.run.ranking import best_submission
from a2rl.run.records import GradeRecord
from a2rl.run.spec import Keep, Protocol
from a2rl.validity.record import read_validity
from stages.grade import grade
from stages.validity import validity
from tests.run_maker import (
    FakePool,
    checkout,
    end_agent,
    finish,
    grade_private,
    make_run,
    prepare_mlflow,
    submit_checkpoint,
)
from tests.small_model import build_base_model, trained_copy

SUBMISSIONS = 6


class Scene:
    """A run, its checkout and a pool that grades when told to."""

    def __init__(self, folder: Path, keep: Keep, protocol: Protocol = "strict") -> None:
        folder.mkdir()
        self.settings: Settings = checkout(folder)
        prepare_mlflow(self.settings)
        self.base_model = build_base_model(folder / "models" / "small")
        self.run: RunDir = make_run(self.settings, self.base_model, keep=keep, protocol=protocol)
        self.pool = FakePool()

    def service(self) -> GradingService:
        return GradingService(self.run, cast(GraderPool, self.pool))

    def submit(self, *seeds: int) -> None:
        service = self.service()
        for seed in seeds:
            trained_copy(self.base_model, self.run.workspace / "output" / f"v{seed}", seed)
            submit_checkpoint(service, f"output/v{seed}")

    def problems(self) -> list[str]:
        return [f"{each.what}: {each.problem}" for each in verify_run(self.run, Tracker(self.settings)) if each.problem]


def kept(run: RunDir) -> set[str]:
    return {path.name for path in run.checkpoints.iterdir()}


def best(run: RunDir) -> str:
    found = best_submission(run.ledger)
    assert found is not None
    return run.checkpoint(found.submission.weights_digest).name


@pytest.mark.parametrize(("keep", "most"), [("all", SUBMISSIONS), ("best", 1), ("none", 1)])
def test_while_the_agent_works_the_best_so_far_is_kept(tmp_path: Path, keep: Keep, most: int) -> None:
    scene = Scene(tmp_path / "checkout", keep)
    for seed in range(SUBMISSIONS):
        scene.submit(seed)
        assert best(scene.run) in kept(scene.run)
        assert len(kept(scene.run)) == min(most, seed + 1)


def test_what_waits_for_a_grade_is_kept_whatever_the_setting(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "checkout", "none", "paper")
    scene.pool = FakePool(at_once=False)
    scene.submit(1, 2, 3)
    assert len(kept(scene.run)) == 3
    scene.pool.grade_all()
    assert kept(scene.run) == {best(scene.run)}


def test_what_could_not_be_graded_is_kept(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "checkout", "none")
    scene.pool.failure = "out of memory"
    scene.submit(1, 2)
    scene.run.clock.stop()
    scene.service()
    assert len(kept(scene.run)) == 2
    assert unneeded(scene.run.spec, scene.run.ledger.entries()) == []


@pytest.mark.parametrize(("keep", "left"), [("all", 3), ("best", 1), ("none", 0)])
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_a_finished_run_without_its_checkpoints_is_whole(
    tmp_path: Path, keep: Keep, left: int, protocol: Protocol
) -> None:
    scene = Scene(tmp_path / "checkout", keep, protocol)
    finish(scene.run, scene.settings, scene.base_model)
    assert len(kept(scene.run)) == left
    assert scene.problems() == []
    write_report(scene.run, scene.settings)
    record = scene.run.read("grade", GradeRecord)
    scene.run.record_path("grade").unlink()  # resumed: the stage is repeated without the checkpoints
    again = grade(scene.run, scene.settings)
    assert record is not None
    assert again.final == record.final


def test_a_stage_that_died_while_pruning_goes_on(tmp_path: Path) -> None:
    """It died between the result and the removal of the checkpoint."""
    scene = Scene(tmp_path / "checkout", "none")
    scene.submit(1, 2)
    end_agent(scene.run)
    grade_private(scene.run)
    grade(scene.run, scene.settings)
    scene.run.record_path("grade").unlink()
    assert grade(scene.run, scene.settings).final is not None
    assert kept(scene.run) == {best(scene.run)}
    validity(scene.run, scene.settings)
    assert kept(scene.run) == set()


def test_the_stage_removes_what_a_crash_after_the_decision_left(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "checkout", "none")
    finish(scene.run, scene.settings, scene.base_model, judged=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.validity.prune", _die)
        with pytest.raises(KeyboardInterrupt):
            validity(scene.run, scene.settings)
    assert kept(scene.run) == {best(scene.run)}
    validity(scene.run, scene.settings)
    assert kept(scene.run) == set()


def _die(run: RunDir) -> None:
    raise KeyboardInterrupt


@pytest.mark.heavy
@pytest.mark.parametrize("keep", ["best", "none"])
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_weights_are_compared_with_the_base_before_removal(tmp_path: Path, keep: Keep, protocol: Protocol) -> None:
    scene = Scene(tmp_path / "checkout", keep, protocol)
    finish(scene.run, scene.settings, scene.base_model)
    found = read_validity(scene.run)
    assert found is not None
    assert [each.kind for each in found.findings if each.kind.startswith("provenance")] == ["provenance-descendant"]
    assert not [each for each in found.findings if each.kind == "not-checked" and "weights" in each.text]


def test_a_result_removed_before_its_decision_is_noticed(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "checkout", "none")
    finish(scene.run, scene.settings, scene.base_model, judged=False)
    scene.run.ledger.append(CheckpointPruned(weights_digest=_digest(scene.run)))
    assert invalid_pruning(scene.run.spec, scene.run.ledger.entries())
    other = Scene(tmp_path / "other", "none")
    other.submit(1)
    other.run.ledger.append(CheckpointPruned(weights_digest=_digest(other.run)))
    assert invalid_pruning(other.run.spec, other.run.ledger.entries())


def _digest(run: RunDir) -> str:
    found = best_submission(run.ledger)
    assert found is not None
    return found.submission.weights_digest


def test_a_pruned_checkpoint_submitted_again_keeps_its_grade(tmp_path: Path) -> None:
    """It takes no disk space."""
    scene = Scene(tmp_path / "checkout", "best")
    scene.submit(*range(SUBMISSIONS))
    removed = next(event for event in scene.run.ledger.events(SubmissionAccepted)
                   if not scene.run.checkpoint(event.weights_digest).exists())  # fmt: skip
    jobs = len(scene.pool.jobs)
    accepted, grade = submit_checkpoint(scene.service(), removed.model_path).outcome.result(5)
    assert grade.weights_digest == accepted.weights_digest == removed.weights_digest
    assert len(scene.pool.jobs) == jobs
    assert len(kept(scene.run)) == 1
    assert scene.problems() == ["MLflow shows what the ledger says: MLflow does not have the run: "
                                f"`a2rl report {scene.run.id}` mirrors it again"]  # fmt: skip


def test_a_removal_that_a_crash_cut_off_is_finished(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "checkout", "best")
    scene.submit(1, 2, 3)
    [*removed] = scene.run.ledger.events(CheckpointPruned)
    folder = scene.run.checkpoint(removed[0].weights_digest)
    folder.mkdir()
    (scene.run.checkpoints / f".pruned-{'0' * 16}").mkdir()
    scene.service()
    assert kept(scene.run) == {best(scene.run)}


@pytest.mark.parametrize("keep", ["all", "best", "none"])
def test_a_removal_of_what_was_needed_is_found(tmp_path: Path, keep: Keep) -> None:
    scene = Scene(tmp_path / "checkout", keep)
    scene.submit(1, 2)
    found = best_submission(scene.run.ledger)
    assert found is not None
    scene.run.ledger.append(CheckpointPruned(weights_digest=found.submission.weights_digest))
    prune(scene.run)
    assert any("removes a checkpoint that the run still needed" in problem for problem in scene.problems())


def test_a_checkpoint_that_is_gone_without_an_event_is_found(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "checkout", "best")
    scene.submit(1)
    scene.run.checkpoint(scene.run.ledger.events(SubmissionAccepted)[0].weights_digest).rename(tmp_path / "gone")
    assert any("checkpoints are the ones" in problem for problem in scene.problems())
