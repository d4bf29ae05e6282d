"""Tests which processes use a GPU according to a fake NVML; if it reports nothing, no process counts as busy."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pynvml
import pytest

from a2rl.execution import compute
from a2rl.execution.compute import GpuWatch
from tests.run_maker import wait_for

POLL_S = 0.01


class Sample(NamedTuple):
    """The use of a GPU by a process, as NVML describes it."""

    pid: int
    timeStamp: int
    smUtil: int


class FakeNvml:
    """A fake driver with some devices. A device that is None reports an error."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
    NVML_ERROR_GPU_NOT_FOUND = pynvml.NVML_ERROR_GPU_NOT_FOUND
    NVML_ERROR_NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
    NVML_ERROR_RESET_REQUIRED = pynvml.NVML_ERROR_RESET_REQUIRED
    NVML_ERROR_DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    lost_by: int | None = None
    """The error with which each GPU answers, if it does not answer well."""

    def __init__(self, *devices: list[Sample] | None, fails: str = "") -> None:
        self.devices, self.fails = devices, fails
        self.asked_since: list[int] = []
        self.is_initialised = False

    def _call(self, name: str) -> None:
        if self.fails == name:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    def nvmlInit(self) -> None:
        self._call("init")
        self.is_initialised = True

    def nvmlShutdown(self) -> None:
        self.is_initialised = False

    def nvmlDeviceGetCount(self) -> int:
        self._call("count")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetMemoryInfo(self, device: int) -> None:
        if self.lost_by is not None:
            raise pynvml.NVMLError(self.lost_by)

    def nvmlDeviceGetProcessUtilization(self, device: int, since_us: int) -> list[Sample]:
        self.asked_since.append(since_us)
        samples = [sample for sample in self.devices[device] or [] if sample.timeStamp > since_us]
        if not samples:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return samples


@pytest.fixture
def watch_on() -> Iterator[Callable[[Any], GpuWatch]]:
    watches: list[GpuWatch] = []

    def start(nvml: Any, *uuids: str) -> GpuWatch:
        watches.append(GpuWatch(uuids, nvml, POLL_S))
        return watches[-1]

    yield start
    for each in watches:
        each.close()


def test_only_a_process_at_work_on_a_gpu_is_busy(
    watch_on: Callable[[Any], GpuWatch],
) -> None:
    """One that only holds memory is not."""
    nvml = FakeNvml([Sample(11, 5, 0)], None, [Sample(12, 6, 87), Sample(13, 7, 0)])
    watch = watch_on(nvml)
    wait_for(lambda: watch.busy_pids() == {12})


def test_each_sample_counts_once_and_keeps_a_process_busy(
    watch_on: Callable[[Any], GpuWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is busy for some seconds after it."""
    nvml = FakeNvml([Sample(12, 6, 87)])
    watch = watch_on(nvml)
    wait_for(lambda: len(nvml.asked_since) > 3)
    assert nvml.asked_since[:2] == [0, 6]
    assert watch.busy_pids() == {12}
    monkeypatch.setattr(compute, "BUSY_FOR_S", 0.0)
    assert watch.busy_pids() == set()


@pytest.mark.parametrize("fails", ["init", "count"])
def test_without_a_driver_or_devices_nothing_is_seen(watch_on: Callable[[Any], GpuWatch], fails: str) -> None:
    nvml = FakeNvml([Sample(12, 6, 87)], fails=fails)
    watch = watch_on(nvml)
    time.sleep(10 * POLL_S)
    assert watch.busy_pids() == set()
    assert not nvml.is_initialised


def test_closing_it_releases_the_driver(watch_on: Callable[[Any], GpuWatch]) -> None:
    nvml = FakeNvml([])
    watch = watch_on(nvml)
    wait_for(lambda: nvml.asked_since)
    assert nvml.is_initialised
    watch.close()
    wait_for(lambda: not nvml.is_initialised)


def test_a_silent_gpu_is_lost_but_one_that_cannot_tell_is_not(
    watch_on: Callable[..., GpuWatch],
) -> None:
    nvml = FakeNvml([], [])
    watch = watch_on(nvml, "GPU-1")
    wait_for(lambda: len(nvml.asked_since) > 3)
    nvml.lost_by = pynvml.NVML_ERROR_NOT_SUPPORTED
    polls = len(nvml.asked_since)
    wait_for(lambda: len(nvml.asked_since) > polls + 8)
    assert not watch.lost
    nvml.lost_by = pynvml.NVML_ERROR_GPU_IS_LOST
    wait_for(lambda: watch.lost)
    assert watch.lost == "GPU GPU-1 has disappeared: GPU is lost"


def test_a_silent_driver_has_failed_only_for_a_run_with_gpus(
    watch_on: Callable[..., GpuWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml([])
    with_gpu, without = watch_on(nvml, "GPU-0"), watch_on(nvml)
    wait_for(lambda: len(nvml.asked_since) > 4)
    with_gpu.close()
    without.close()
    monkeypatch.setattr(compute, "SILENCE_S", 0.0)
    assert "not answered" in wait_for(lambda: with_gpu.lost)
    assert not without.lost


def test_the_real_library_on_this_machine_raises_nothing(watch_on: Callable[[Any], GpuWatch]) -> None:
    watch = watch_on(pynvml)
    time.sleep(0.2)
    assert isinstance(watch.busy_pids(), set)
