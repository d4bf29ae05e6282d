"""Measures whether an agent computes, by the processor time of its process tree and its use of GPUs.

Processes that start and end between two samples are not missed. A parent's time includes the children it has waited
for, a zombie keeps its time, and a process that is running at the moment of a sample counts as computing, however
little time it has used. Samples must be taken at moments that the agent cannot predict.

NVML says which processes use an NVIDIA GPU, and whether the GPUs of a run are still there:

    watch = GpuWatch(["GPU-8932f937-..."])
    watch.busy_pids()    # {4711}
    watch.lost           # "GPU GPU-8932f937-... has disappeared: GPU is lost"; empty as long as all answer
    watch.close()

Without a GPU, a driver or the permission to ask, no process is ever seen as busy, and no GPU as lost.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pynvml

from a2rl.linux.process_tree import MAX_PROCESSES, PROC, Process, descendants, read_stat

IDLE_SHARE = 0.1
"""A share of one core. An agent that uses less does not compute. Idle agent systems use 1 to 3%."""
MAX_CGROUP_LOOKUPS = 20
"""After this many samples without a control group, no control group is expected any more."""


class Sample(NamedTuple):
    """What was measured at one moment."""

    cpu_s: float
    """Processor time so far. It never decreases, and only differences are meaningful."""
    is_running: bool
    """Whether a process was running or runnable at that moment, or used a GPU recently."""


class Load(Protocol):
    """Measures an agent."""

    def sample(self) -> Sample:
        """Takes a sample."""


def computed(before: Sample, after: Sample, seconds: float) -> bool:
    """Says whether the agent computed between two samples that were taken this many seconds apart."""
    return after.is_running or after.cpu_s - before.cpu_s >= IDLE_SHARE * seconds


class TreeLoad:
    """Measures the processes below the supervisor of an agent.

    Args:
        root: Process id of the supervisor. It is a subreaper, so that no process of the agent leaves the tree.
        groups: Returns the folders of the control groups that contain only the agent, once it is in them; their
            processor time is complete.
    """

    def __init__(
        self,
        root: int,
        groups: Callable[[], list[Path]] = list,
        gpus: Callable[[], set[int]] = set,
        proc: Path = PROC,
        below: Callable[[int], Iterable[int]] = descendants,
    ) -> None:
        self._root = root
        self._below = below
        self._groups = groups
        self._group: Path | None = None
        self._group_s = 0.0
        self._lookups = 0
        self._gpus = gpus
        self._proc = proc
        self._seen: dict[tuple[int, int], float] = {}
        self._cpu_s = 0.0

    def sample(self) -> Sample:
        """Takes a sample.

        Raises:
            OSError: /proc cannot be read.
        """
        # Each process is read as soon as it is found, because it may exist for only a few milliseconds.
        found = [read_stat(pid, self._proc) for pid in chain((self._root,), self._below(self._root))]
        tree = [stat for stat in found if stat is not None]
        used = {(stat.pid, stat.started): self._used_s(stat) for stat in tree}
        # A new process has used all its time since the last sample. A parent's time may include a child's time that
        # was already counted; then the agent is more likely to count as computing.
        in_tree_s = sum(max(0.0, now_s - self._seen.get(key, 0.0)) for key, now_s in used.items())
        self._seen = used
        self._cpu_s += max(in_tree_s, self._in_group_s())
        pids = {stat.pid for stat in tree} - {self._root}
        is_running = any(stat.state == "R" for stat in tree if stat.pid != self._root) or bool(pids & self._gpus())
        is_running = is_running or len(found) >= MAX_PROCESSES  # there may be further processes that were not read
        return Sample(self._cpu_s, is_running)

    def _in_group_s(self) -> float:
        """Returns the processor time of the control group since the last sample; 0 if there is no control group."""
        if self._group is None:
            self._find_group()
            return 0.0
        now_s = cgroup_cpu_s(self._group)
        if now_s is None:
            return 0.0
        before_s, self._group_s = self._group_s, now_s
        return now_s - before_s

    def _find_group(self) -> None:
        self._lookups += 1
        if self._lookups > MAX_CGROUP_LOOKUPS:
            return
        for group in self._groups():
            cpu_s = cgroup_cpu_s(group)
            if cpu_s is not None:
                self._group, self._group_s = group, cpu_s
                return

    def _used_s(self, stat: Process) -> float:
        """Returns the agent's part of a process's time.

        The supervisor's own time belongs to the pipeline, but the processes that it has reaped were the agent's.
        """
        return stat.reaped_s + (0.0 if stat.pid == self._root else stat.own_s)


def cgroup_cpu_s(folder: Path) -> float | None:
    """Returns the processor time of a control group (version 2 or 1) so far, in seconds; None if it is unknown."""
    try:
        lines = (folder / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec "))
    except (OSError, StopIteration):
        try:
            return int((folder / "cpuacct.usage").read_text()) / 1e9
        except OSError:
            return None


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
