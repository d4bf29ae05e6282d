"""Which processes use an NVIDIA GPU, and whether the GPUs of a run are still there, as NVML reports it.

    watch = GpuWatch(["GPU-8932f937-..."])
    watch.busy_pids()    # {4711}
    watch.lost           # "GPU GPU-8932f937-... has disappeared: GPU is lost"; empty as long as all answer
    watch.close()

Without a GPU, a driver or the permission to ask, no process is ever seen as busy, and no GPU as lost.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pynvml

POLL_INTERVAL_S = 2.0
BUSY_FOR_S = 6.0
"""A process counts as busy for this long after it was last seen using a GPU."""


SILENCE_S = 600.0
"""A driver that does not answer for this long has failed. Answers of a busy one may take seconds."""
STRIKES = 2
"""A GPU that has answered before counts as lost after this many polls in a row have found it missing."""


class GpuWatch:
    """Polls NVML in a separate thread, because a call may hang when a driver fails."""

    def __init__(self, uuids: Sequence[str] = (), nvml: Any = pynvml, poll_interval_s: float = POLL_INTERVAL_S) -> None:
        """Starts watching.

        Args:
            uuids: The GPUs that must stay.
            nvml: The NVML bindings; tests pass a fake.
            poll_interval_s: Seconds between two polls.
        """
        self._nvml = nvml
        self._poll_interval_s = poll_interval_s
        self._last_seen: dict[int, float] = {}
        self._missing = dict.fromkeys(uuids, 0)
        self._answered = set[str]()
        self._lost = ""
        self._polled: float | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="gpu watch", daemon=True).start()

    def busy_pids(self) -> set[int]:
        """Returns the processes that used a GPU within the last `BUSY_FOR_S` seconds."""
        since = time.monotonic() - BUSY_FOR_S
        return {pid for pid, seen in self._last_seen.copy().items() if seen > since}

    @property
    def lost(self) -> str:
        """What has happened to a GPU that must stay; empty if nothing has."""
        if self._missing and self._polled is not None and time.monotonic() - self._polled > SILENCE_S:
            return f"NVIDIA's driver has not answered for {SILENCE_S:.0f} s"
        return self._lost

    def close(self) -> None:
        """Ends the thread after its current poll; does not wait for it."""
        self._closed.set()

    def _watch(self) -> None:
        try:
            self._nvml.nvmlInit()
        except (self._nvml.NVMLError, OSError):
            return  # no driver or no GPU
        try:
            newest_us = dict.fromkeys(self._devices(), 0)
            while not self._closed.wait(self._poll_interval_s):
                self._polled = time.monotonic()
                for uuid in self._missing:
                    self._look_for(uuid)
                for device, since_us in newest_us.items():
                    newest_us[device] = self._poll(device, since_us)
        except self._nvml.NVMLError:
            return  # the devices cannot be listed
        finally:
            self._nvml.nvmlShutdown()

    def _devices(self) -> list[Any]:
        found = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            with suppress(self._nvml.NVMLError):  # this one is lost; the others are watched
                found.append(self._nvml.nvmlDeviceGetHandleByIndex(index))
        return found

    def _look_for(self, uuid: str) -> None:
        """Notes if a GPU is no longer there. Other errors say nothing about that."""
        nvml = self._nvml
        gone = (
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_GPU_NOT_FOUND,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_RESET_REQUIRED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        )
        try:
            nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
        except nvml.NVMLError as error:
            if error.value not in gone or uuid not in self._answered:
                return  # an old driver cannot find MIG instances
            self._missing[uuid] += 1
            if self._missing[uuid] >= STRIKES and not self._closed.is_set():
                self._lost = f"GPU {uuid} has disappeared: {error}"
        else:
            self._missing[uuid] = 0
            self._answered.add(uuid)

    def _poll(self, device: Any, since_us: int) -> int:
        """Notes the busy processes of one device since a time; returns the time of the newest sample."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(device, since_us)
        except self._nvml.NVMLError:
            return since_us  # no process used it since then, or this device cannot tell
        for sample in samples:
            if sample.smUtil > 0:
                self._last_seen[sample.pid] = time.monotonic()
        newest_us: int = max([since_us, *(sample.timeStamp for sample in samples)])
        return newest_us
