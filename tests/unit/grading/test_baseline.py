"""Tests simultaneous runs with the same baseline: one process grades it, and all use the result."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock
from time import sleep

import pytest

import stages.baseline
from a2rl.core.errors import InfrastructureError
from a2rl.core.files import read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.baseline import load_or_grade
from a2rl.grading.dependencies import baseline_key
from a2rl.grading.grades import grade_job
from a2rl.grading.job import GradeJob, GradeResult, ids_of_job, ids_of_run, selected_ids
from a2rl.run.directory import RunDir
from a2rl.run.records import SetupRecord
from tests.run_maker import grade_result, item_results, make_run

SEEDS = 4


@pytest.fixture
def job(run: RunDir, settings: Settings) -> GradeJob:
    model = run.need("setup", SetupRecord).base_model
    return grade_job(run, model, "all", run.grades / "baseline-graded.json")


def graded(job: GradeJob) -> GradeResult:
    ids = selected_ids(job.task, job.hidden, "all", 0)
    return grade_result(item_results(ids, 3), 0.1)


def start_together(work: Callable[[], bool]) -> list[bool]:
    together = Barrier(SEEDS)

    def one(_: int) -> bool:
        together.wait()
        return work()

    with ThreadPoolExecutor(SEEDS) as pool:
        return list(pool.map(one, range(SEEDS)))


def test_of_seeds_that_start_together_one_grades_the_baseline(job: GradeJob, settings: Settings) -> None:
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


def test_a_baseline_that_its_judge_failed_is_graded_again(job: GradeJob, settings: Settings) -> None:
    """As `grade_now` does, a result that is there is used."""
    items = [item.model_copy(update={"verdict": "errored", "reason": "HTTP 503"}) for item in graded(job).items]
    results = iter([grade_result(tuple(items), 0.1), graded(job)])

    def grade(job: GradeJob) -> GradeResult:
        if not job.result.exists():
            write_model(job.result, next(results))
        return read_model(job.result, GradeResult)

    with pytest.raises(InfrastructureError, match="HTTP 503"):
        load_or_grade(job, {"model": "m"}, settings, grade)
    assert not load_or_grade(job, {"model": "m"}, settings, grade).reused


@pytest.mark.parametrize("stored", [False, True])
def test_a_baseline_that_lacks_a_half_is_graded_again(
    stored: bool, settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that a run with other halves has stored. Of ten items, one may be errored, and of five, none."""
    run = make_run(settings, base_model, items=10, started=False)
    failed = ids_of_run(run.spec, run.need("setup", SetupRecord).hidden, "private")[0]
    tries: list[str] = []

    def grade(job: GradeJob, *_: object) -> GradeResult:
        tries.append(failed)
        errored = {"verdict": "errored", "value": 0.0, "reason": "HTTP 503"}
        items = [item.model_copy(update=errored if item.id == failed else {}) for item in graded(job).items]
        return grade_result(tuple(items), 0.1)

    monkeypatch.setattr(stages.baseline, "grade_on_all_gpus", grade)
    run.record_path("baseline").unlink()
    if stored:
        with monkeypatch.context() as other:
            other.setattr(stages.baseline, "load_or_grade", lambda *given: load_or_grade(*given[:4]))
            stages.baseline.baseline(run, settings)
        run.record_path("baseline").unlink()
    with pytest.raises(InfrastructureError, match="private half: 1 of 5 items could not be judged"):
        stages.baseline.baseline(run, settings)
    assert len(tries) == 1 + stored
    failed = ""
    assert stages.baseline.baseline(run, settings).private.score is not None


def test_a_baseline_that_somebody_grades_for_ever_is_an_error(
    job: GradeJob, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from a2rl.grading import baseline

    monkeypatch.setattr(baseline, "GRADING_TIMEOUT_S", 0.2)

    def grade(job: GradeJob) -> GradeResult:
        with pytest.raises(InfrastructureError, match="another run grades the same baseline"):
            load_or_grade(job, {"model": "m"}, settings, graded)
        return graded(job)

    load_or_grade(job, {"model": "m"}, settings, grade)


def stored_whole(job: GradeJob, settings: Settings) -> list[str]:
    """Stores a baseline of the whole eval set, in which every second item is correct."""
    ids = selected_ids(job.task, job.hidden, "all", 0)
    items = [item_results([each], place % 2)[0] for place, each in enumerate(ids)]
    load_or_grade(job, {"model": "m"}, settings, lambda _: grade_result(tuple(items), 8.0))
    return ids


def test_a_baseline_of_the_whole_eval_set_serves_a_sample_of_it(job: GradeJob, settings: Settings) -> None:
    ids = stored_whole(job, settings)
    sampled = job.model_copy(update={"limit": 4})
    found = load_or_grade(sampled, {"model": "m", "sample": "4 by seed 7"}, settings, graded_never)
    assert [item.id for item in found.items] == selected_ids(job.task, job.hidden, "all", job.split_seed, 4)
    assert [item.value for item in found.items] == [ids.index(item.id) % 2 for item in found.items]
    assert (found.reused, found.seconds) == (True, 4.0)


def test_a_baseline_of_a_sample_serves_only_that_sample(job: GradeJob, settings: Settings) -> None:
    sampled = job.model_copy(update={"limit": 4})

    def grade(job: GradeJob) -> GradeResult:
        return grade_result(item_results(ids_of_job(job), 1), 0.1)

    assert not load_or_grade(sampled, {"model": "m", "sample": "4 by seed 7"}, settings, grade).reused
    assert load_or_grade(sampled, {"model": "m", "sample": "4 by seed 7"}, settings, graded_never).reused
    assert not load_or_grade(sampled, {"model": "m", "sample": "4 by seed 8"}, settings, grade).reused
    whole = load_or_grade(job, {"model": "m"}, settings, grade)
    assert not whole.reused
    assert len(whole.items) == 8


def test_a_sample_of_all_items_is_the_whole_eval_set(job: GradeJob) -> None:
    assert ids_of_job(job.model_copy(update={"limit": 8})) == ids_of_job(job)


def test_the_key_of_a_sample_names_its_size_and_its_seed(job: GradeJob, settings: Settings) -> None:
    whole, sampled = (baseline_key(job.model_copy(update={"limit": limit}), "m", "d", settings) for limit in (None, 4))
    assert sampled == {**whole, "sample": f"4 by seed {job.split_seed}"}


def graded_never(job: GradeJob) -> GradeResult:
    raise AssertionError("it is graded again")
