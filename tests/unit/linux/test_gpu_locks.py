"""Tests that each GPU is held by one process at a time, that others wait in turn, and that a crash frees it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from a2rl.core import locks, processes
from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.linux import gpu_locks
from a2rl.linux.gpu_locks import hold_for_grade, hold_gpus
from a2rl.linux.gpus import Gpu
from tests.fake_gpus import fake_gpu

EIGHT = [fake_gpu(index) for index in range(8)]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL_INTERVAL_S", 0.01)


@pytest.fixture
def held_elsewhere(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """Returns a function that starts a process which holds the first GPUs, and returns its id."""
    children: list[int] = []

    def hold(count: int) -> int:
        ready, tell = os.pipe()
        if (child := os.fork()) == 0:
            with hold_gpus(EIGHT, count, tmp_path, "run a"):
                os.write(tell, b"!")
                time.sleep(600)
            os._exit(0)
        children.append(child)
        os.read(ready, 1)
        return child

    yield hold
    for child in children:
        end(child)


def end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return  # the test has ended it


def test_eight_runs_hold_eight_gpus_and_each_has_its_own(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def work(number: int) -> str:
        with hold_gpus(EIGHT, 1, tmp_path, f"run {number}") as [gpu]:
            together.wait(60)  # all hold one at the same time
            return gpu.uuid

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(work, range(8))) == {gpu.uuid for gpu in EIGHT}


def test_four_runs_on_two_gpus_take_turns_and_all_get_one(tmp_path: Path) -> None:
    assert most_at_once(4, lambda number: hold_gpus(EIGHT[:2], 1, tmp_path, f"run {number}")) == 2


def most_at_once(count: int, hold: Callable[[int], AbstractContextManager[object]]) -> int:
    """Returns how many of so many holders, each in a thread, held at the same time; all of them have held once."""
    holders, most, lock = 0, 0, threading.Lock()

    def work(number: int) -> None:
        nonlocal holders, most
        with hold(number):
            with lock:
                holders += 1
                most = max(most, holders)
            time.sleep(0.05)
            with lock:
                holders -= 1

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))
    return most


def test_another_process_has_other_gpus_and_a_crash_frees_them(
    tmp_path: Path, held_elsewhere: Callable[[int], int]
) -> None:
    child = held_elsewhere(6)
    with hold_gpus(EIGHT, 2, tmp_path, "run b") as mine:
        assert [gpu.index for gpu in mine] == [6, 7]
    end(child)
    with hold_gpus(EIGHT, 8, tmp_path, "run b") as mine:
        assert len(mine) == 8


def test_who_waits_says_for_whom_and_stops_when_the_user_says(
    tmp_path: Path,
    held_elsewhere: Callable[[int], int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child, stop = held_elsewhere(8), threading.Event()
    monkeypatch.setattr(locks, "FIRST_NOTICE_S", 0.0)
    monkeypatch.setattr(processes, "STOP", stop)
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(InterruptedByUserError), hold_gpus(EIGHT, 1, tmp_path, "run b"):
        pass
    assert (
        f"run b needs 1 of the GPUs 0, 1, 2, 3, 4, 5, 6, 7; in use by run a, process {child}" in capsys.readouterr().err
    )


def test_a_wait_for_gpus_has_an_end(
    tmp_path: Path, held_elsewhere: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held_elsewhere(8)
    monkeypatch.setattr(gpu_locks, "TIMEOUT_S", 0.05)
    with pytest.raises(InfrastructureError, match="still in use by run a"), hold_gpus(EIGHT, 1, tmp_path, "run b"):
        pass


def test_a_run_that_needs_several_is_not_overtaken_for_ever(tmp_path: Path) -> None:
    """Two runs that need three of four, among runs that need one, all end: they do not wait for each other."""

    def work(number: int) -> int:
        count = 3 if number in (2, 3) else 1
        with hold_gpus(EIGHT[:4], count, tmp_path, f"run {number}") as mine:
            time.sleep(0.02)
            return len(mine)

    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(work, range(10), timeout=60)) == [3 if n in (2, 3) else 1 for n in range(10)]


def test_runs_with_other_gpus_do_not_wait_for_each_other(tmp_path: Path, held_elsewhere: Callable[[int], int]) -> None:
    held_elsewhere(4)
    waiting = threading.Thread(target=_hold_briefly, args=(EIGHT[:4], tmp_path), daemon=True)
    waiting.start()
    with hold_gpus(EIGHT[4:], 1, tmp_path, "run c") as [mine]:
        assert mine.index == 4


def _hold_briefly(candidates: list[Gpu], folder: Path, shared: int = 0) -> None:
    with hold_gpus(candidates, 1, folder, "run b", shared=shared):
        pass


def test_eight_runs_share_the_last_gpu_and_seven_have_one_alone(tmp_path: Path) -> None:
    with ExitStack() as held:
        runs = [held.enter_context(hold_gpus(EIGHT, 1, tmp_path, f"run {n}", shared=1)) for n in range(7)]
        assert [[gpu.index for gpu in gpus] for gpus in runs] == [[n, 7] for n in range(7)]
        eighth = threading.Thread(target=_hold_briefly, args=(EIGHT, tmp_path, 1), daemon=True)
        eighth.start()
        eighth.join(0.2)
        assert eighth.is_alive()
    eighth.join(30)
    assert not eighth.is_alive()


def test_a_gpu_that_is_shared_is_nobody_elses_alone(tmp_path: Path) -> None:
    with (
        hold_gpus(EIGHT[:3], 0, tmp_path, "run a", shared=1) as [graders],
        hold_gpus(EIGHT[:3], 2, tmp_path, "run b") as alone,
    ):
        assert (graders.index, [gpu.index for gpu in alone]) == (2, [0, 1])


def test_grades_of_many_runs_take_turns_on_a_gpu(tmp_path: Path) -> None:
    gpus = [EIGHT[0].uuid]
    assert most_at_once(24, lambda number: hold_for_grade(gpus, tmp_path, f"the grade {number}")) == 1


def test_a_grade_that_waits_ends_when_its_pool_is_closed(tmp_path: Path) -> None:
    def closed() -> None:
        raise InterruptedByUserError("grading was stopped")

    with (
        hold_for_grade([EIGHT[0].uuid], tmp_path, "the grade a"),
        pytest.raises(InterruptedByUserError),
        hold_for_grade([EIGHT[0].uuid], tmp_path, "the grade b", closed),
    ):
        pass


def test_no_gpu_needs_no_lock(tmp_path: Path) -> None:
    with hold_gpus([], 0, tmp_path / "locks", "run a") as mine:
        assert mine == ()
    assert not (tmp_path / "locks").exists()


def test_a_lock_file_that_is_something_else_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / f"{EIGHT[0].uuid}.queue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match="cannot open"), hold_gpus(EIGHT[:1], 1, tmp_path, "run a"):
        pass
    assert not (tmp_path / "elsewhere").exists()
