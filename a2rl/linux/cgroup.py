"""Control groups: the kernel's account of an agent's processes, with limits and a way to kill all of them.

    group = ControlGroup.make("a2rl-4f1c")        # None if this user may not create any
    group.limit(resources)                        # returns the controllers that could be limited
    ... the agent's first process calls group.enter() before it becomes the agent ...
    group.kill(); group.remove()

With a group of version 2, one write kills all of its processes, whatever they do. The group is created at this
process's own position in the hierarchy or above it, in a place where this process may write: root may, and so may a
user to whom systemd delegates a group (`systemd-run --user --scope -p Delegate=yes`). Places where limits can be set as
well are preferred. On some machines, the limits are in hierarchies of version 1.

Source: docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/. Standard library only: the supervisor imports this
module, which is also why no library (such as cgroupspy) is used.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from a2rl.core.cgroup_folders import hierarchies, lines_of
from a2rl.linux.resources import Resources

CONTROLLERS = ("cpu", "memory", "pids")
REMOVE_TIMEOUT_S = 1.0
_SHARE_OF_A_TASK = 1024
_WEIGHT_OF_A_GROUP = 100
_PERIOD_US = 100_000


class ControlGroup(NamedTuple):
    """The control groups of one agent."""

    unified: str
    """Folder of the version 2 group; empty if there is none."""
    controllers: dict[str, str]
    """Folder by controller, for those of CONTROLLERS that can be limited."""

    @classmethod
    def make(cls, name: str) -> "ControlGroup | None":
        """Creates an empty group; returns None if that is not possible."""
        folders = hierarchies()
        unified = _made_in_the_best(folders.get("", []), name)
        controllers = {each: unified for each in _offered_in(unified)} if unified else {}
        for each in CONTROLLERS:
            if each not in controllers and (folder := _made(folders.get(each, [])[:1], name)):
                controllers[each] = folder
        return cls(unified, controllers) if unified or controllers else None

    @property
    def folders(self) -> list[str]:
        """All folders of the group, in both versions."""
        return sorted({self.unified, *self.controllers.values()} - {""})

    @property
    def ends_at_once(self) -> bool:
        """Whether the kernel can kill all processes in one step (Linux 5.14)."""
        return bool(self.unified) and Path(self.unified, "cgroup.kill").exists()

    def limit(self, resources: Resources) -> list[str]:
        """Sets limits; returns the controllers for which that worked."""
        return [each for each, folder in self.controllers.items() if _limit(each, folder, resources)]

    def enter(self) -> bool:
        """Moves the calling process, and with it all future children, into the group.

        Returns:
            False if it could not enter every folder of the group.
        """
        return all([_write(folder, "cgroup.procs", "0") for folder in self.folders])

    def kill(self) -> None:
        """Kills all processes of the group; without cgroup.kill, those that exist at the time of the call."""
        if self.unified and _write(self.unified, "cgroup.kill", "1"):
            return
        if "pids" in self.controllers:
            _write(self.controllers["pids"], "pids.max", "0")  # no process can fork any more
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def members(self) -> set[int]:
        """Returns the processes of this group and the groups below it, without zombies."""
        return {pid for folder in self.folders for below, _, _ in os.walk(folder) for pid in _pids(below)}

    def remove(self) -> None:
        """Removes the group if it is empty."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        for folder in self.folders:
            for below, _, _ in os.walk(folder, topdown=False):
                while not _removed(below) and time.monotonic() < deadline:
                    time.sleep(0.01)


def _pids(folder: str) -> list[int]:
    try:
        return [int(word) for word in Path(folder, "cgroup.procs").read_bytes().split() if word != b"0"]
    except (OSError, ValueError):
        return []


def _removed(folder: str) -> bool:
    try:
        Path(folder).rmdir()
    except OSError:
        return not Path(folder).exists()
    return True


def _write(folder: str, name: str, text: str) -> bool:
    try:
        descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _limit(controller: str, folder: str, resources: Resources) -> bool:
    is_v2 = Path(folder, "cgroup.kill").exists() or Path(folder, "cgroup.events").exists()
    if controller == "pids":
        return bool(resources.processes) and _write(folder, "pids.max", str(resources.processes))
    if controller == "memory":
        name = "memory.max" if is_v2 else "memory.limit_in_bytes"
        done = bool(resources.memory) and _write(folder, name, str(resources.memory))
        # No swap beside it, where the kernel counts that: it would slow down all others.
        if done and is_v2:
            _write(folder, "memory.swap.max", "0")
        elif done:
            _write(folder, "memory.memsw.limit_in_bytes", str(resources.memory))
        return done
    return _limit_cpu(folder, resources, is_v2)


def _limit_cpu(folder: str, resources: Resources, is_v2: bool) -> bool:
    """Sets the agent's share of the processor time so that the grader can get half of it.

    If there are processes beside the agent's group, the group weighs as much as one process per core. If there are only
    other groups, which have the default weight, the agent's group gets the default weight as well.
    """
    cores = os.cpu_count() or 1
    if resources.cores:
        quota = round(resources.cores * _PERIOD_US)
        _write(folder, *(("cpu.max", f"{quota} {_PERIOD_US}") if is_v2 else ("cpu.cfs_quota_us", str(quota))))
    if not is_v2:
        return _write(folder, "cpu.shares", str(_SHARE_OF_A_TASK * cores))
    beside_tasks = bool(_pids(str(Path(folder).parent)))
    return _write(folder, "cpu.weight", str(min(10_000, _WEIGHT_OF_A_GROUP * (cores if beside_tasks else 1))))


def _offered_in(folder: str) -> list[str]:
    words = " ".join(lines_of(f"{folder}/cgroup.controllers")).split()
    return [each for each in CONTROLLERS if each in words]


def _made_in_the_best(folders: list[str], name: str) -> str:
    """Creates the group where most controllers can be limited; among equals, at the nearest place."""

    def hands_down(folder: str) -> int:
        return sum(each in " ".join(lines_of(f"{folder}/cgroup.subtree_control")).split() for each in CONTROLLERS)

    return _made(sorted(folders, key=hands_down, reverse=True), name)


def _made(folders: list[str], name: str) -> str:
    """Creates a group in the first folder where this process may, and returns its path ("" if none)."""
    for folder in folders:
        if os.access(f"{folder}/cgroup.procs", os.W_OK, effective_ids=True):
            with contextlib.suppress(OSError):
                Path(folder, name).mkdir()
                return str(Path(folder, name))
    return ""
