"""Tests `a2rl regrade` with the real grader and a very small model."""

import shutil
from pathlib import Path

import pytest

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import read_model, write_model
from a2rl.grading.grades import grade_job
from a2rl.grading.job import GradeResult
from a2rl.grading.pool import grade_now
from a2rl.grading.regrade import Regrade, regrade
from a2rl.run.events import SubmissionAccepted
from a2rl.scoring.score import ItemResult, summarise
from tests.run_maker import Finished, finished_run

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run whose second submission was graded by the real grader; the others have made-up grades."""
    finished = finished_run(tmp_path_factory.mktemp("regrade") / "checkout")
    run = finished.run
    digest = accepted(finished, 2).weights_digest
    run.items(digest, "public").unlink()
    job = grade_job(run, run.checkpoint(digest), "public", run.items(digest, "public"))
    grade_now(job, finished.settings, devices=["cpu"])
    return finished


def accepted(finished: Finished, number: int) -> SubmissionAccepted:
    return finished.run.ledger.events(SubmissionAccepted)[number - 1]


def test_a_checkpoint_gets_the_same_score_to_the_last_item(graded: Finished) -> None:
    files = {path: path.read_bytes() for path in graded.run.grades.iterdir()}
    found = regrade(graded.run, graded.settings, 2)
    assert found.is_same
    assert (found.submission, found.split, found.other_answers) == (2, "public", 0)
    assert found.before.score == found.after.score
    assert {path: path.read_bytes() for path in graded.run.grades.iterdir()} == files


@pytest.mark.parametrize(("difference", "is_same"), [(1e-12, True), (0.01, False)])
def test_the_last_bit_of_a_fitted_score_is_no_difference(difference: float, is_same: bool) -> None:
    before = summarise([ItemResult(id="1", verdict="correct", value=0.7)])
    after = before.model_copy(update={"score": (before.score or 0.0) + difference})
    found = Regrade(
        run_id="x", submission=1, weights_digest="x", split="private", before=before, after=after, differences=(),
        other_answers=0,
    )  # fmt: skip
    assert found.is_same is is_same


def test_a_grade_that_was_changed_is_found_and_the_item_is_named(graded: Finished) -> None:
    path = graded.run.items(accepted(graded, 2).weights_digest, "public")
    honest = read_model(path, GradeResult)
    first, *others = honest.items
    forged = [first.model_copy(update={"verdict": "correct", "value": 1.0}), *others]
    write_model(path, honest.model_copy(update={"items": tuple(forged), "score": summarise(forged)}))
    try:
        found = regrade(graded.run, graded.settings, 2)
    finally:
        write_model(path, honest)
    assert not found.is_same
    [difference] = found.differences
    assert (difference.id, difference.before, difference.value_before) == (first.id, "correct", 1.0)
    assert (difference.after, difference.value_after) == (first.verdict, first.value)


def test_without_a_number_the_submission_that_counts_is_graded(graded: Finished) -> None:
    """It is graded on the items that decided."""
    found = regrade(graded.run, graded.settings)
    assert found.split == "private"
    assert not found.is_same  # its private grade was made up


@pytest.mark.parametrize("number", [4, 99])
def test_a_missing_submission_is_refused_with_existing_numbers(graded: Finished, number: int) -> None:
    with pytest.raises(UsageError, match="1 to 3"):
        regrade(graded.run, graded.settings, number)


def test_a_checkpoint_that_was_not_kept_is_refused(graded: Finished, tmp_path: Path) -> None:
    checkpoint = graded.run.checkpoint(accepted(graded, 1).weights_digest)
    aside = checkpoint.rename(tmp_path / "aside")
    try:
        with pytest.raises(UsageError, match="--keep all"):
            regrade(graded.run, graded.settings, 1)
    finally:
        aside.rename(checkpoint)


def test_a_checkpoint_that_was_changed_is_not_graded(graded: Finished, tmp_path: Path) -> None:
    checkpoint = graded.run.checkpoint(accepted(graded, 1).weights_digest)
    kept = shutil.copytree(checkpoint, tmp_path / "kept")
    weights = next(checkpoint.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    try:
        with pytest.raises(IntegrityError, match="was changed"):
            regrade(graded.run, graded.settings, 1)
    finally:
        shutil.rmtree(checkpoint)
        shutil.move(kept, checkpoint)
