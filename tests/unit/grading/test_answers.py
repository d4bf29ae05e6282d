"""Tests that a grading job answers as its settings say, whatever the task."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2rl.core.files import read_model
from a2rl.grading import job as grading
from a2rl.grading.dependencies import baseline_key
from a2rl.grading.job import GradeJob, GradeResult, Part, run_job
from a2rl.grading.outputs import progress_path, read_progress
from a2rl.judge.failures import Failures
from a2rl.sampling.generation import Generation
from a2rl.task_api.catalog import load_grader
from tests.fake_sampler import FakeSampler
from tests.run_maker import checkout, grade_job_in, make_hidden

SAMPLED = Generation(temperature=1.0, max_new_tokens=33, samples=3, strip_reasoning=True)


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> FakeSampler:
    """Answers every question with 0, which is right for the first item, except in its third round."""
    made: FakeSampler = FakeSampler(lambda prompt: f"<think>#### 7</think>#### {0 if len(made.calls) < 3 else 1}")

    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[FakeSampler]:
        yield made

    monkeypatch.setattr(grading, "open_sampler", opened)
    return made


@pytest.fixture
def job(tmp_path: Path) -> GradeJob:
    return grade_job_in(tmp_path, hidden=make_hidden(tmp_path / "hidden"), split_seed=7, generation=SAMPLED)


def test_the_device_is_free_while_the_judge_still_works(
    job: GradeJob, sampler: FakeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Asking:
        def put(self, item: str) -> None:
            order.append("asked")

        def answers(self) -> bool:
            order.append("judged")
            return True

    def grade(answering: Any, hidden: Path, ids: Any, limits: Any, options: Any, asking: Asking) -> Any:
        items = gsm8k.grade(answering, hidden, ids, limits, options)
        asking.put("0")
        return lambda: asking.answers() and items

    class OneJudge:
        def asking(self, failures_allowed: int, failures: Failures) -> Asking:
            return Asking()

    gsm8k: Any = load_grader("gsm8k")
    judged = {**vars(gsm8k), "OWN_JUDGE": ("", ""), "grade": grade, "trial_question": grade}
    monkeypatch.setattr(grading, "load_grader", lambda _: SimpleNamespace(**judged))
    monkeypatch.setattr("a2rl.judge.local.open_judge", lambda *_: nullcontext(OneJudge()))
    run_job(job, on_answered=lambda: order.append("the device is free"))
    assert order == ["asked"] * 3 + ["the device is free"] + ["judged"] * 3
    assert read_model(job.result, GradeResult).score.total == 8


def test_each_round_draws_numbers_and_an_item_has_the_mean(job: GradeJob, sampler: FakeSampler) -> None:
    run_job(job)
    found = read_model(job.result, GradeResult)
    assert [item.value for item in found.items] == [pytest.approx(2 / 3)] + [0.0] * 7
    assert found.score.score == pytest.approx(100 * 2 / 3 / 8)
    assert [params.seed for params in sampler.params] == [0, 1, 2]
    assert {(params.temperature, params.max_new_tokens) for params in sampler.params} == {(1.0, 33)}
    assert read_progress(progress_path(job.result)) is None


def test_parts_on_several_devices_have_different_random_numbers(job: GradeJob, sampler: FakeSampler) -> None:
    for start in range(2):
        run_job(job.model_copy(update={"part": Part(start, 2), "result": job.result.with_name(f"{start}.json")}))
    assert sorted(params.seed for params in sampler.params) == list(range(6))


def test_a_greedy_job_is_graded_as_before(job: GradeJob, sampler: FakeSampler) -> None:
    run_job(job.model_copy(update={"generation": Generation()}))
    [params] = sampler.params
    assert (params.temperature, params.max_new_tokens, params.stop) == (0.0, 96, ("Question:",))


def test_the_way_of_answering_is_in_the_key_of_a_baseline(job: GradeJob, tmp_path: Path) -> None:
    """It is left out where it is the default."""
    (tmp_path / "checkout").mkdir()
    settings = checkout(tmp_path / "checkout")
    keys = [
        baseline_key(job.model_copy(update={"generation": each}), "m", "d", settings)
        for each in (Generation(), SAMPLED, SAMPLED.over(Generation(top_k=5)), Generation(top_k=5).over(SAMPLED))
    ]
    assert "generation" not in keys[0]
    assert len({key.get("generation") for key in keys}) == 3
