"""Tests the pool of grading workers: whatever happens to a worker, every job ends, and in time."""

import errno
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import (
    A2rlError,
    InfrastructureError,
    InterruptedByUserError,
    LackOfMemoryError,
    MissingInputError,
    UsageError,
)
from a2rl.core.files import write_model
from a2rl.core.processes import OF_MACHINE, Child
from a2rl.core.settings import Settings
from a2rl.grading.devices import DeviceLostError
from a2rl.grading.job import GradeJob, GradeResult
from a2rl.grading.pool import MAX_JUDGING, GraderPool, GradingError, WorkerProcess
from a2rl.grading.worker import FAILED, _exit_code_of
from a2rl.linux.gpu_locks import hold_for_grade
from a2rl.sampling.vllm_process import EngineLostError
from tests.fake_gpus import FakeGpus
from tests.run_maker import REPOSITORY, alive, grade_job_in, grade_result, item_results, wait_for, worker_pids

SOON_S = 30
"""Far more than any of this takes."""
Make = Callable[..., GradeJob]


@pytest.fixture
def make(tmp_path: Path, settings: Settings) -> Make:
    model = tmp_path / "graded.json"
    write_model(model, grade_result(item_results(["a", "b"], 1), 0.5))

    def job(do: str, time_limit_s: float = 60.0, silence_s: float = 60.0) -> GradeJob:
        return grade_job_in(
            tmp_path, root=settings.root, model=model, split="public", options={"do": do},
            result=tmp_path / f"{do}.json", time_limit_s=time_limit_s, silence_s=silence_s,
        )  # fmt: skip

    return job


@pytest.fixture
def pool(settings: Settings) -> Iterator[GraderPool]:
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    with GraderPool(settings, ["cpu"], worker="tests.fake_worker") as pool:
        yield pool


@pytest.mark.parametrize(
    ("do", "limits", "says"),
    [
        ("stop", {"silence_s": 0.5}, "no sign of life"),
        ("hang", {"time_limit_s": 0.5}, "longer than its limit"),
        ("die", {}, "ended with its worker"),
    ],
)
def test_a_dead_or_hanging_grader_fails_and_the_next_job_goes_on(
    pool: GraderPool, make: Make, do: str, limits: dict[str, float], says: str
) -> None:
    """It may be stopped, hang or be killed."""
    failed, graded = pool.submit(make(do, **limits)), pool.submit(make("grade"))
    error = failed.exception(SOON_S)
    assert isinstance(error, GradingError)
    assert says in str(error)
    assert error.seconds < SOON_S
    assert graded.result(SOON_S).score.correct == 1


@pytest.mark.parametrize(("do", "is_of_machine"), [("full disk", True), ("out of memory", False), ("killed", False)])
def test_a_failure_says_whether_the_machine_is_the_reason(
    pool: GraderPool, make: Make, do: str, is_of_machine: bool
) -> None:
    error = pool.submit(make(do).model_copy(update={"memory_wait_s": 0.1})).exception(SOON_S)
    assert isinstance(error, GradingError)
    assert error.is_of_machine == is_of_machine


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InfrastructureError("the disk is full"), OF_MACHINE),
        (MissingInputError("the data has changed"), OF_MACHINE),
        (LackOfMemoryError("not enough memory to generate even one text"), FAILED),
        (EngineLostError("vLLM has died", ""), FAILED),
        (UsageError("cannot be loaded as a checkpoint"), FAILED),
    ],
)
def test_what_may_be_the_models_fault_is_not_the_machines(error: A2rlError, code: int) -> None:
    assert _exit_code_of(error, None) == code


def test_a_device_grades_on_while_a_job_waits_for_its_judge(pool: GraderPool, make: Make) -> None:
    waiting, graded = pool.submit(make("judge")), pool.submit(make("grade"))
    assert graded.result(SOON_S).score.correct == 1
    assert not waiting.done()
    make("judge").result.with_suffix(".verdict").touch()
    assert waiting.result(SOON_S).score.correct == 1


def test_pools_of_two_runs_take_turns_on_a_gpu_that_they_share(settings: Settings, make: Make) -> None:
    """A job that only waits for its judge leaves the GPU to the other run."""
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    other = make("grade").model_copy(update={"result": make("grade").result.with_name("other.json")})
    with (
        GraderPool(settings, ["GPU-0"], worker="tests.fake_worker") as mine,
        GraderPool(settings, ["GPU-0"], worker="tests.fake_worker") as theirs,
    ):
        hanging = mine.submit(make("hang"))
        wait_for(make("hang").result.with_suffix(".child").exists)
        waiting = theirs.submit(other)
        with pytest.raises(TimeoutError):
            waiting.result(1)
        mine.close()
        assert isinstance(hanging.exception(SOON_S), InterruptedByUserError)
        assert waiting.result(SOON_S).score.correct == 1
        judging = theirs.submit(make("judge"))
        with GraderPool(settings, ["GPU-0"], worker="tests.fake_worker") as third:
            assert third.submit(make("grade")).result(SOON_S).score.correct == 1
        assert not judging.done()


def test_a_grade_that_waits_for_another_run_ends_with_its_pool(settings: Settings, make: Make) -> None:
    with hold_for_grade(["GPU-0"], settings.gpu_locks, "another"), GraderPool(settings, ["GPU-0"]) as pool:
        waiting = pool.submit(make("grade"))
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        pool.close()
        assert isinstance(waiting.exception(SOON_S), InterruptedByUserError)


def test_only_so_many_jobs_of_a_device_wait_for_their_judge(pool: GraderPool, make: Make) -> None:
    def named(number: int) -> GradeJob:
        return make("judge").model_copy(update={"result": make("judge").result.with_name(f"{number}.json")})

    waiting = [pool.submit(named(number)) for number in range(MAX_JUDGING + 1)]
    graded = pool.submit(make("grade"))
    with pytest.raises(TimeoutError):
        graded.result(1)
    named(0).result.with_suffix(".verdict").touch()
    assert waiting[0].result(SOON_S).score.correct == 1
    for number in range(1, MAX_JUDGING + 1):
        named(number).result.with_suffix(".verdict").touch()
    assert [each.result(SOON_S).score.correct for each in [*waiting, graded]] == [1] * (MAX_JUDGING + 2)


@pytest.mark.heavy
def test_a_job_that_waits_too_long_for_its_judge_fails_alone(pool: GraderPool, make: Make) -> None:
    pool.submit(make("grade")).result(SOON_S)  # its worker has started
    late, other = make("judge", time_limit_s=2.0), make("judge")
    other = other.model_copy(update={"result": other.result.with_name("other.json")})
    failed, waiting = pool.submit(late), pool.submit(other)
    [worker] = worker_pids(pool)
    error = failed.exception(SOON_S)
    assert isinstance(error, GradingError)
    assert "longer than its limit" in str(error)
    other.result.with_suffix(".verdict").touch()
    assert waiting.result(SOON_S).score.correct == 1
    assert worker_pids(pool) == [worker]


def test_what_waits_for_its_judge_ends_with_the_pool(pool: GraderPool, make: Make) -> None:
    waiting, graded = pool.submit(make("judge")), pool.submit(make("grade"))
    graded.result(SOON_S)
    pool.close()
    assert isinstance(waiting.exception(SOON_S), InterruptedByUserError)


def test_a_job_whose_worker_died_is_tried_once_more(pool: GraderPool, make: Make) -> None:
    assert pool.submit(make("die once")).result(SOON_S).score.correct == 1


def test_all_jobs_of_a_worker_hear_of_its_end(settings: Settings, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them goes on before the last one has heard of it."""

    class SlowQueue(queue.SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item)
            time.sleep(0.2 if item is None else 0.0)

    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    with ThreadPoolExecutor(3) as threads:
        monkeypatch.setattr(queue, "SimpleQueue", SlowQueue)
        worker = WorkerProcess(settings, "cpu", "tests.fake_worker")
        waiting = [threads.submit(worker.run, make("hang", silence_s=2 * SOON_S)) for _ in range(3)]
        wait_for(lambda: len(worker._heard) == 3 and make("hang").result.with_suffix(".child").exists())
        worker.kill()
        assert [each.result(SOON_S) for each in waiting] == [None] * 3


def test_a_worker_that_cannot_be_killed_keeps_no_other_alive(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    pool = GraderPool(settings, ["cpu", "cpu"], worker="tests.fake_worker")
    hanging, other = worker_pids(pool)
    kill = WorkerProcess.kill

    def kill_all_but_one(worker: WorkerProcess) -> None:
        if worker.pid == hanging:
            raise InfrastructureError("it cannot be killed")
        kill(worker)

    with monkeypatch.context() as patched:
        patched.setattr(WorkerProcess, "kill", kill_all_but_one)
        with pytest.raises(InfrastructureError, match="cannot be killed"):
            pool.close()
    assert not alive(other)
    pool.close()


def test_a_pool_that_cannot_start_ends_what_it_has_started(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    start, started = Child.of_module.__func__, list[Child]()  # type: ignore[attr-defined]

    def start_once(kind: type[Child], *arguments: Any, **named: Any) -> Child:
        if started:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(start(kind, *arguments, **named))
        return started[0]

    monkeypatch.setattr(Child, "of_module", classmethod(start_once))
    with pytest.raises(InfrastructureError, match="cannot start the grader: Resource temporarily unavailable"):
        GraderPool(settings, ["cpu", "cpu"], worker="tests.fake_worker")
    assert not started[0].is_alive


def test_a_result_that_has_no_place_keeps_no_device_busy(pool: GraderPool, make: Make) -> None:
    nowhere = make("grade").model_copy(update={"result": make("grade").model / "result.json"})
    assert isinstance(pool.submit(nowhere).exception(SOON_S), InfrastructureError)
    assert pool.submit(make("grade")).result(SOON_S).score.correct == 1


def test_a_grader_that_cannot_write_its_log_ends_alone(settings: Settings, make: Make) -> None:
    """It is a fork of the worker, and never goes on as the worker."""
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    job = make("grade").model_copy(update={"log": make("grade").model / "log"})
    with GraderPool(settings, ["cpu"], worker="tests.light_worker") as pool:
        error = pool.submit(job).exception(SOON_S)
    assert isinstance(error, GradingError)
    assert "exit code 70" in str(error)


def test_a_worker_that_was_started_again_grades_later_jobs(pool: GraderPool, make: Make) -> None:
    """The kernel ends a worker with the thread that has started it."""
    pool.submit(make("die once")).result(SOON_S)
    [worker] = worker_pids(pool)
    wait_for(lambda: not any(thread.name.endswith("(_grade)") for thread in threading.enumerate()))
    assert pool.submit(make("grade")).result(SOON_S).score.correct == 1
    assert worker_pids(pool) == [worker]


def test_jobs_are_graded_also_where_no_thread_can_be_started(
    pool: GraderPool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the agent has taken all processes that the user may have."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert pool.submit(make("grade")).result(SOON_S).score.correct == 1
    assert pool.submit(make("die once")).result(SOON_S).score.correct == 1


@pytest.mark.heavy
def test_whatever_a_grader_started_is_ended_with_it(pool: GraderPool, make: Make) -> None:
    """This holds in whatever session it is."""
    job = make("hang", time_limit_s=5.0)
    future = pool.submit(job)
    child = int(wait_for(lambda: (path := job.result.with_suffix(".child")).exists() and path.read_text()))
    assert isinstance(future.exception(SOON_S), GradingError)
    wait_for(lambda: not alive(child))


def test_when_the_pool_is_closed_nobody_waits_any_more(pool: GraderPool, make: Make) -> None:
    running, waiting = pool.submit(make("hang")), pool.submit(make("grade"))
    wait_for(lambda: make("hang").result.with_suffix(".child").exists())
    began = time.monotonic()
    pool.close()
    late = pool.submit(make("grade"))
    for future in (running, waiting, late):
        assert isinstance(future.exception(SOON_S), InterruptedByUserError)
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("left", [True, False])
def test_what_a_lost_gpu_had_to_grade_is_graded_on_another(settings: Settings, make: Make, left: bool) -> None:
    """If there is none, it fails with the reason."""
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    fake = FakeGpus(settings.root, 2)
    lost = fake.uuid(0)
    job = make("die on").model_copy(update={"options": {"do": "die on", "device": lost}})
    with GraderPool(fake.seen_by(settings), [lost, fake.uuid(1)] if left else [lost], "tests.fake_worker") as pool:
        fake.lose(0)
        graded = [pool.submit(job.model_copy(update={"result": job.result.with_name(f"{n}.json")})) for n in range(4)]
        if left:
            assert [each.result(SOON_S).score.correct for each in graded] == [1] * 4
        else:
            errors = [each.exception(SOON_S) for each in graded]
            assert all(isinstance(error, DeviceLostError) for error in errors)
            assert str(errors[0]) == f"GPU {lost} has disappeared (GPU 0 does not answer: GPU is lost)"


def test_a_job_whose_two_gpus_are_lost_is_graded_on_a_third(settings: Settings, make: Make) -> None:
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    fake = FakeGpus(settings.root, 3)
    lost = [fake.uuid(0), fake.uuid(1)]
    job = make("die on").model_copy(update={"options": {"do": "die on", "device": ",".join(lost)}})
    numbers = iter(range(10))

    def submit(on: list[str]) -> "Future[GradeResult]":
        return graders.submit(job.model_copy(update={"result": job.result.with_name(f"{next(numbers)}.json")}), on)

    with GraderPool(fake.seen_by(settings), [*lost, fake.uuid(2)], "tests.fake_worker") as graders:
        fake.lose(0)
        fake.lose(1)
        at_once = [submit([lost[0]]), submit([lost[1]]), submit(lost), submit(lost)]
        assert [each.result(SOON_S).score.correct for each in at_once] == [1] * 4
        # Both are out of service now, and an agent still names them.
        assert [submit(on).result(SOON_S).score.correct for on in ([lost[0]], lost)] == [1, 1]


def test_a_job_that_waits_for_memory_is_stopped_with_the_pool(pool: GraderPool, make: Make) -> None:
    """It has not failed: the next pool grades it."""
    waiting = pool.submit(make("out of memory").model_copy(update={"memory_wait_s": 1e6}))
    pool.submit(make("grade")).result(SOON_S)  # so the device is free again
    pool.close()
    assert isinstance(waiting.exception(SOON_S), InterruptedByUserError)
