"""Tests grading on several devices: the parts together are the whole job."""

from pathlib import Path

import pytest

from a2rl.core.files import read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeJob, GradeResult, merged, parts_of, selected_ids
from a2rl.grading.outputs import joint_progress
from a2rl.grading.pool import grade_now
from tests.run_maker import grade_job_in, grade_result, item_results, make_hidden


@pytest.fixture
def job(tmp_path: Path, settings: Settings, base_model: Path) -> GradeJob:
    return grade_job_in(
        tmp_path, root=settings.root, hidden=make_hidden(tmp_path / "hidden", items=7), model=base_model
    )


@pytest.mark.parametrize(("devices", "sizes"), [(1, [7]), (2, [4, 3]), (3, [3, 2, 2]), (20, [1] * 7)])
def test_the_results_of_parts_are_those_of_the_job_in_order(job: GradeJob, devices: int, sizes: list[int]) -> None:
    ids = selected_ids(job.task, job.hidden, job.split, job.split_seed)
    parts = parts_of(job, devices)
    results = [
        grade_result(item_results(ids[part.part.start :: part.part.step], right=1), seconds=2.0) for part in parts
    ]
    for part, result in zip(parts, results, strict=True):
        write_model(part.result, result)
    assert [len(result.items) for result in results] == sizes
    whole = merged(job, parts, results)
    assert [item.id for item in whole.items] == ids
    assert (whole.score.correct, whole.score.total, whole.score.seconds) == (len(parts), 7, 2.0 * len(parts))
    assert read_model(job.result, GradeResult) == whole
    assert [path.name for path in job.result.parent.glob("*.json")] == ["graded.json"]


def test_progress_is_known_once_every_part_has_begun(job: GradeJob) -> None:
    first, second = (part.result for part in parts_of(job, 2))
    first.with_suffix(".progress").write_text("1 4 9 24")
    assert joint_progress([first, second]) is None
    second.with_suffix(".progress").write_text("2 3 20 18")
    assert joint_progress([first, second]) == (3, 7, 29, 42)


@pytest.mark.slow
def test_two_devices_give_the_same_result_as_one(job: GradeJob, settings: Settings) -> None:
    apart = grade_now(job, settings, devices=["cpu", "cpu"])
    job.result.unlink()
    alone = grade_now(job, settings, devices=["cpu"])
    assert apart.items == alone.items
    assert apart.score.score == alone.score.score
