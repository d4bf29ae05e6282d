"""Tests grading on several devices: the parts together are the whole job."""

from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2rl.core.files import read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading import job as grading
from a2rl.grading import pool
from a2rl.grading.job import GradeJob, GradeResult, merged, parts_of, run_job, selected_ids
from a2rl.grading.outputs import joint_progress
from a2rl.grading.pool import grade_now
from a2rl.judge.client import Answer, Asking, Judge, Question
from a2rl.judge.params import JudgeConfig, JudgeParams
from a2rl.sampling.generation import Generation
from a2rl.scoring.score import ItemResult, TaskScore, Verdict
from a2rl.task_api.catalog import load_grader
from tests.fake_sampler import FakeSampler
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


class RefusingJudge(Judge):
    """Refuses some of the items, and knows which it was asked about."""

    def __init__(self, cache: Path, refused: Container[str]) -> None:
        super().__init__(JudgeConfig(JudgeParams(concurrency=1), cache))
        self.refused, self.asked = refused, list[str]()

    def ask_one(self, question: Question) -> Answer:
        self.asked.append(item := question.messages[0]["content"])
        return Answer(None, "refused") if item in self.refused else Answer(1.0)


def judged_score(
    job: GradeJob, judge: Callable[[], Judge], monkeypatch: pytest.MonkeyPatch, shared: Path | None = None
) -> TaskScore:
    """Grades a job in eight parts, all items of which are judged, and returns the score."""

    def grade(sampler: Any, hidden: Path, ids: Sequence[str], limits: Any, options: Any, asking: Asking) -> Any:
        for each in ids:
            asking.put(each, Question([{"content": each}], lambda _: 1.0))
        return lambda: [judged(each, answer) for each, answer in asking.answers().items()]

    def judged(item: str, answer: Answer) -> ItemResult:
        verdict: Verdict = "errored" if answer.verdict is None else "correct"
        return ItemResult(id=item, verdict=verdict, value=answer.verdict or 0.0, reason=answer.reason)

    with_judge = {**vars(load_grader("gsm8k")), "OWN_JUDGE": ("", ""), "grade": grade, "trial_question": grade}
    monkeypatch.setattr(grading, "load_grader", lambda _: SimpleNamespace(**with_judge))
    monkeypatch.setattr(grading, "open_sampler", lambda *_, **__: nullcontext(FakeSampler(str)))
    monkeypatch.setattr("a2rl.judge.local.open_judge", lambda *_: judge())
    parts = parts_of(job, 8)
    for part in parts:
        run_job(part.model_copy(update={"judge_failures": shared}))
    return merged(job, parts, [read_model(part.result, GradeResult) for part in parts]).score


@pytest.fixture
def long_job(tmp_path: Path, settings: Settings, base_model: Path) -> GradeJob:
    """A job with 100 items, of which two may be errored, each answered twice."""
    hidden = make_hidden(tmp_path / "hidden", 100)
    job = grade_job_in(tmp_path, root=settings.root, hidden=hidden, model=base_model)
    return job.model_copy(update={"generation": Generation(temperature=1.0, samples=2)})


def test_refusals_in_one_part_cost_no_more_than_its_items(
    long_job: GradeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part tolerates what the whole job does: 2 of 100 items, and not 1 of its own 13."""
    judge = partial(RefusingJudge, tmp_path / "judgements.db", {"0", "8"})
    for shared in (None, tmp_path / "failures"):
        score = judged_score(long_job, judge, monkeypatch, shared)
        assert (score.score, score.errored, score.correct) == (100, 2, 98)


def test_a_dead_judge_is_asked_no_more_by_all_parts_than_by_one(
    long_job: GradeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tolerated and one more, in all rounds of all parts together."""
    asked = list[str]()

    class Dead(RefusingJudge):
        def __exit__(self, *error: object) -> None:
            asked.extend(self.asked)
            super().__exit__(*error)

    ids = set(map(str, range(100)))
    score = judged_score(long_job, lambda: Dead(tmp_path / "c.db", ids), monkeypatch, tmp_path / "failures")
    assert (score.score, score.errored) == (None, 100)
    assert len(asked) == 3


def test_the_parts_of_a_grade_count_its_failures_together(
    job: GradeJob, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = list[Path | None]()

    class Pool(AbstractContextManager["Pool"]):
        def __init__(self, *_: object) -> None:
            """Grades at once."""

        def submit(self, part: GradeJob) -> Future[GradeResult]:
            counted.append(part.judge_failures)
            graded: Future[GradeResult] = Future()
            ids = selected_ids(part.task, part.hidden, part.split, part.split_seed)[part.part.start :: part.part.step]
            graded.set_result(grade_result(item_results(ids, right=1), seconds=1.0))
            return graded

        def __exit__(self, *_: object) -> None:
            """Has nothing to end."""

    monkeypatch.setattr(pool, "GraderPool", Pool)
    grade_now(job, settings, devices=["0", "1"])
    assert len(counted) == 2
    assert len(set(counted)) == 1
    assert counted[0] is not None


@pytest.mark.slow
def test_two_devices_give_the_same_result_as_one(job: GradeJob, settings: Settings) -> None:
    apart = grade_now(job, settings, devices=["cpu", "cpu"])
    job.result.unlink()
    alone = grade_now(job, settings, devices=["cpu"])
    assert apart.items == alone.items
    assert apart.score.score == alone.score.score
