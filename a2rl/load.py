"""Whether an agent computes: the processor time of its processes, and what they do on NVIDIA GPUs where that is seen.

Processes that come and go between two looks are not missed: a parent takes on the time of the children it has waited
for, a zombie keeps its own, and whatever is found on a processor at the moment of a look counts as computing, however
little time it shows. Looks are to come at moments that the agent cannot know.
"""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

from a2rl.isolation.tree import MANY, descendants

IDLE_SHARE = 0.1
"""Of one core: an agent that uses less does not compute. Agent systems that wait use 1 to 3%."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GPU_LAST_S = 6.0
MAX_LOOKS = 20
"""For a control group: one that is not there by then will not be."""
PMON = ("pmon", "-s", "u", "-d", "2")


class Sample(NamedTuple):
    """What was seen at one moment."""

    cpu_s: float
    """Processor time so far; only differences mean anything. It never falls."""
    is_running: bool
    """Whether something was on a processor just then, waited for one, or used a GPU lately."""


class Load(Protocol):
    """What measures an agent."""

    def sample(self) -> Sample: ...


def computed(before: Sample, after: Sample, seconds: float) -> bool:
    """Whether the agent computed between two samples."""
    return after.is_running or after.cpu_s - before.cpu_s >= IDLE_SHARE * seconds


class Stat(NamedTuple):
    """A process, from /proc/PID/stat."""

    pid: int
    state: bytes
    own_s: float
    """Processor time of all its threads."""
    reaped_s: float
    """That of the children it has waited for, and of theirs."""
    started: int


class TreeLoad:
    """The processes below the supervisor of an agent.

    Args:
        root: the supervisor. It is a subreaper, so that nothing of the agent leaves the tree.
        groups: tells the folders of the control groups that hold the agent and nothing else, as soon as it is in them;
            their figure misses nothing at all.
        gpus: tells which processes use a GPU.
    """

    def __init__(
        self,
        root: int,
        groups: Callable[[], list[Path]] = list,
        gpus: Callable[[], set[int]] = set,
        proc: Path = Path("/proc"),
        below: Callable[[int], Iterable[int]] = descendants,
    ) -> None:
        self._root = root
        self._below = below
        self._groups = groups
        self._group: Path | None = None
        self._group_s = 0.0
        self._looks = 0
        self._gpus = gpus
        self._proc = proc
        self._seen: dict[tuple[int, int], float] = {}
        self._cpu_s = 0.0

    def sample(self) -> Sample:
        """Raises OSError: /proc cannot be read."""
        # Each is looked at as soon as it is found: it may live for a few milliseconds only.
        found = [read_stat(self._proc, pid) for pid in chain((self._root,), self._below(self._root))]
        tree = [stat for stat in found if stat is not None]
        used = {(stat.pid, stat.started): self._used_s(stat) for stat in tree}
        # One that was not there before has used its time since; a parent's may hold a child's that was counted.
        in_tree_s = sum(max(0.0, now_s - self._seen.get(key, 0.0)) for key, now_s in used.items())
        self._seen = used
        self._cpu_s += max(in_tree_s, self._in_group_s())
        pids = {stat.pid for stat in tree} - {self._root}
        is_running = any(stat.state == b"R" for stat in tree if stat.pid != self._root) or bool(pids & self._gpus())
        is_running = is_running or len(found) >= MANY  # there may be more, which were not looked at
        return Sample(self._cpu_s, is_running)

    def _in_group_s(self) -> float:
        """What the control group has used since the last look; 0 where there is none."""
        if self._group is None:
            self._looks += 1
            told = self._groups() if self._looks <= MAX_LOOKS else []
            self._group = next((group for group in told if cgroup_cpu_s(group) is not None), None)
            self._group_s = cgroup_cpu_s(self._group) or 0.0 if self._group is not None else 0.0
            return 0.0
        before_s, self._group_s = self._group_s, cgroup_cpu_s(self._group) or self._group_s
        return self._group_s - before_s

    def _used_s(self, stat: Stat) -> float:
        """The supervisor works for the pipeline, but what it has reaped was the agent's."""
        return stat.reaped_s + (0.0 if stat.pid == self._root else stat.own_s)


def read_stat(proc: Path, pid: int) -> Stat | None:
    """None if the process has ended."""
    try:
        line = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = line.rpartition(b")")[2].split()  # a name may hold anything, brackets and line ends too
    user, system, reaped_user, reaped_system = (int(field) / TICKS_PER_S for field in fields[11:15])
    own_s, reaped_s = user + system, reaped_user + reaped_system
    return Stat(pid, fields[0], own_s, reaped_s, int(fields[19]))


def cgroup_cpu_s(folder: Path) -> float | None:
    """Processor time of everything that ever ran in a control group, version 2 or 1; None where it is not told."""
    try:
        lines = (folder / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec "))
    except (OSError, StopIteration):
        try:
            return int((folder / "cpuacct.usage").read_text()) / 1e9
        except OSError:
            return None


class GpuWatch:
    """Which processes use an NVIDIA GPU, as `nvidia-smi pmon` tells every two seconds; none where there is no such."""

    def __init__(self) -> None:
        self._busy: dict[int, float] = {}
        self._process = _start_pmon(shutil.which("nvidia-smi"))
        if self._process is not None:
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def pids(self) -> set[int]:
        """Those that did a few seconds ago."""
        since = time.monotonic() - GPU_LAST_S
        return {pid for pid, seen in self._busy.copy().items() if seen > since}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            if (pid := busy_on_gpu(line)) is not None:
                self._busy[pid] = time.monotonic()


def busy_on_gpu(line: str) -> int | None:
    """The process that a line `gpu pid type sm ...` of pmon shows at work; None if there is none."""
    fields = line.split()
    if len(fields) < 4 or not fields[1].isdigit() or not fields[3].isdigit():
        return None
    return int(fields[1]) if int(fields[3]) > 0 else None


def _start_pmon(program: str | None) -> "subprocess.Popen[str] | None":
    """It ends with its reader, as nobody takes its lines then."""
    if program is None:
        return None
    try:
        return subprocess.Popen(
            [program, *PMON], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None
