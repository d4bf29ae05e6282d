"""Baselines beside each other: graded once, by one, and taken by all."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock
from time import sleep

import pytest

from a2rl.baseline import load_or_grade
from a2rl.errors import InfrastructureError
from a2rl.grading.job import GradeJob, GradeResult, selected_ids
from a2rl.grading.service import grade_job
from a2rl.records import SetupRecord
from a2rl.run import RunDir
from a2rl.settings import Settings
from tests.run_maker import item_results

SEEDS = 4


@pytest.fixture
def job(run: RunDir, settings: Settings) -> GradeJob:
    model = run.need("setup", SetupRecord).base_model
    return grade_job(run, settings.root, model, "all", run.grades / "baseline-graded.json")


def graded(job: GradeJob) -> GradeResult:
    ids = selected_ids(job.task, job.hidden, "all", 0)
    return GradeResult.of(list(item_results(ids, 3)), 0.1)


def start_together(work: Callable[[], bool]) -> list[bool]:
    together = Barrier(SEEDS)

    def one(_: int) -> bool:
        together.wait()
        return work()

    with ThreadPoolExecutor(SEEDS) as pool:
        return list(pool.map(one, range(SEEDS)))


def test_of_seeds_that_start_side_by_side_one_grades_the_baseline(job: GradeJob, settings: Settings) -> None:
    asked, counting = [], Lock()

    def grade(job: GradeJob) -> GradeResult:
        with counting:
            asked.append(job)
        sleep(0.5)
        return graded(job)

    reused = start_together(lambda: load_or_grade(job, {"model": "m"}, settings, grade).reused)
    assert len(asked) == 1
    assert sorted(reused) == [False, True, True, True]


def test_where_the_first_fails_the_next_tries(job: GradeJob, settings: Settings) -> None:
    tries: list[int] = []

    def grade(job: GradeJob) -> GradeResult:
        tries.append(1)
        if len(tries) == 1:
            raise InfrastructureError("the grader died")
        return graded(job)

    def attempt() -> bool:
        try:
            load_or_grade(job, {"model": "m"}, settings, grade)
        except InfrastructureError:
            return False
        return True

    assert sorted(start_together(attempt)) == [False, True, True, True]
    assert len(tries) == 2


def test_a_baseline_that_somebody_grades_for_ever_is_an_error(
    job: GradeJob, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from a2rl import baseline

    monkeypatch.setattr(baseline, "GRADING_TIMEOUT_S", 0.2)

    def grade(job: GradeJob) -> GradeResult:
        with pytest.raises(InfrastructureError, match="another run grades the same baseline"):
            load_or_grade(job, {"model": "m"}, settings, graded)
        return graded(job)

    load_or_grade(job, {"model": "m"}, settings, grade)
