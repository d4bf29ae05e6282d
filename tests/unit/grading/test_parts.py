"""Tests grading on several devices: the parts together are the whole job."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2rl.core.files import read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading import job as grading
from a2rl.grading.job import GradeJob, GradeResult, merged, parts_of, run_job, selected_ids
from a2rl.grading.outputs import joint_progress
from a2rl.grading.pool import grade_now
from a2rl.judge.client import Answer, Asking, Judge, Question
from a2rl.judge.params import JudgeConfig, JudgeParams
from a2rl.scoring.score import ItemResult, Verdict
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


def test_refusals_in_one_part_cost_no_more_than_its_items(
    tmp_path: Path, settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part tolerates what the whole job does: 2 of 100 items, and not 1 of its own 13."""

    class Refusing(Judge):
        def ask_one(self, question: Question) -> Answer:
            return Answer(None, "refused") if question.messages[0]["content"] in {"0", "8"} else Answer(1.0)

    def grade(sampler: Any, hidden: Path, ids: Sequence[str], limits: Any, options: Any, asking: Asking) -> Any:
        for each in ids:
            asking.put(each, Question([{"content": each}], lambda _: 1.0))
        return lambda: [judged(each, answer) for each, answer in asking.answers().items()]

    def judged(item: str, answer: Answer) -> ItemResult:
        verdict: Verdict = "errored" if answer.verdict is None else "correct"
        return ItemResult(id=item, verdict=verdict, value=answer.verdict or 0.0, reason=answer.reason)

    with_judge = {**vars(load_grader("gsm8k")), "OWN_JUDGE": ("", ""), "grade": grade, "trial_question": grade}
    judge = JudgeConfig(JudgeParams(concurrency=1), tmp_path / "judgements.db")
    monkeypatch.setattr(grading, "load_grader", lambda _: SimpleNamespace(**with_judge))
    monkeypatch.setattr(grading, "open_sampler", lambda *_, **__: nullcontext(FakeSampler(str)))
    monkeypatch.setattr("a2rl.judge.local.open_judge", lambda *_: Refusing(judge))
    job = grade_job_in(tmp_path, root=settings.root, hidden=make_hidden(tmp_path / "hidden", 100), model=base_model)
    parts = parts_of(job, 8)
    for part in parts:
        run_job(part)
    score = merged(job, parts, [read_model(part.result, GradeResult) for part in parts]).score
    assert (score.score, score.errored, score.correct) == (100, 2, 98)


@pytest.mark.slow
def test_two_devices_give_the_same_result_as_one(job: GradeJob, settings: Settings) -> None:
    apart = grade_now(job, settings, devices=["cpu", "cpu"])
    job.result.unlink()
    alone = grade_now(job, settings, devices=["cpu"])
    assert apart.items == alone.items
    assert apart.score.score == alone.score.score
