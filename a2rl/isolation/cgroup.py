"""Control groups: the kernel's own account of which processes are an agent's, with limits and an end for all of them.

    group = Group.make("a2rl-4f1c")        # None where this user may make none
    group.limit(resources)                 # what it could not set is not in the answer
    ... the agent's first process calls group.enter() before it becomes the agent ...
    group.kill(); group.remove()

A group of version 2 ends its processes in one write, whatever they do. It is looked for at this process's own place in
the hierarchy and above it, where root may write, or where systemd lets a user (`systemd-run --user --scope -p
Delegate=yes`); best where limits can be set as well. Some machines have the limits in hierarchies of version 1.
Source: docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/. Only the standard library is imported.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.isolation.resources import Resources

CONTROLLERS = ("cpu", "memory", "pids")
REMOVE_S = 1.0
_SHARE_OF_A_TASK = 1024
_WEIGHT_OF_A_GROUP = 100
_PERIOD_US = 100_000


class Group(NamedTuple):
    """The control groups of one agent."""

    unified: str
    """Folder of the group of version 2; empty if there is none."""
    controllers: dict[str, str]
    """Folder for each of CONTROLLERS that can be limited."""

    @classmethod
    def make(cls, name: str) -> "Group | None":
        """A new, empty group; None where there can be none."""
        hierarchies = _hierarchies()
        unified = _made_in_the_best(hierarchies.get("", []), name)
        controllers = {each: unified for each in _offered_in(unified)} if unified else {}
        for each in CONTROLLERS:
            if each not in controllers and (folder := _made(hierarchies.get(each, [])[:1], name)):
                controllers[each] = folder
        return cls(unified, controllers) if unified or controllers else None

    @property
    def folders(self) -> list[str]:
        return sorted({self.unified, *self.controllers.values()} - {""})

    @property
    def ends_at_once(self) -> bool:
        """Whether the kernel ends all of it in one step (Linux 5.14)."""
        return bool(self.unified) and Path(self.unified, "cgroup.kill").exists()

    def limit(self, resources: Resources) -> list[str]:
        """Sets limits; returns which controllers have theirs."""
        return [each for each, folder in self.controllers.items() if _limit(each, folder, resources)]

    def enter(self) -> bool:
        """Puts the calling process, and all that it starts from now on, into it; False: not wholly."""
        return all([_write(folder, "cgroup.procs", "0") for folder in self.folders])

    def kill(self) -> None:
        """Ends all of its processes; without the kernel's help, as many as there are when it is called."""
        if self.unified and _write(self.unified, "cgroup.kill", "1"):
            return
        if "pids" in self.controllers:
            _write(self.controllers["pids"], "pids.max", "0")  # nobody forks any more
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def members(self) -> set[int]:
        """Its processes, those in groups below it too. Ended ones that nobody has waited for are not among them."""
        return {pid for folder in self.folders for below, _, _ in os.walk(folder) for pid in _pids(below)}

    def remove(self) -> None:
        """Takes the empty group away. One that still has processes stays."""
        deadline = time.monotonic() + REMOVE_S
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
        return done and (is_v2 or _write(folder, "memory.memsw.limit_in_bytes", str(resources.memory)) or done)
    return _limit_cpu(folder, resources, is_v2)


def _limit_cpu(folder: str, resources: Resources, is_v2: bool) -> bool:
    """However many processes it has, the agent weighs no more than one process for each core: the grader keeps half.

    Beside a group of the grader's own, which has the usual weight, it has the usual weight, too.
    """
    cores = os.cpu_count() or 1
    if resources.cores:
        quota = round(resources.cores * _PERIOD_US)
        _write(folder, *(("cpu.max", f"{quota} {_PERIOD_US}") if is_v2 else ("cpu.cfs_quota_us", str(quota))))
    if not is_v2:
        return _write(folder, "cpu.shares", str(_SHARE_OF_A_TASK * cores))
    beside_tasks = bool(_pids(str(Path(folder).parent)))
    return _write(folder, "cpu.weight", str(min(10_000, _WEIGHT_OF_A_GROUP * (cores if beside_tasks else 1))))


def _hierarchies() -> dict[str, list[str]]:
    """Folders of the groups that this process is in, and of those above, nearest first; by controller, "" for v2."""
    mounts = list(_mounts())
    found: dict[str, list[str]] = {}
    for line in _lines("/proc/self/cgroup"):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            for kind, controllers, root, place in mounts:
                if (kind == "cgroup2" and not name) or (kind == "cgroup" and name and name in controllers):
                    found.setdefault(name, _upwards(place, root, path))
    return found


def _mounts() -> Iterator[tuple[str, list[str], str, str]]:
    """Type, controllers, the part of the hierarchy that is mounted, and where; as in proc(5)."""
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, (kind, _, options, *_) = before.split(" "), [*after.split(" "), "", "", ""]
        if kind in {"cgroup", "cgroup2"} and len(fields) > 4:
            yield kind, options.split(","), fields[3], fields[4]


def _upwards(place: str, root: str, path: str) -> list[str]:
    below = os.path.relpath(path, root)
    own = Path(place) if below == "." or below.startswith("..") else Path(place, below)
    return [str(folder) for folder in (own, *own.parents) if folder.is_relative_to(place)]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_bytes().decode(errors="surrogateescape").splitlines()
    except OSError:
        return []


def _offered_in(folder: str) -> list[str]:
    words = " ".join(_lines(f"{folder}/cgroup.controllers")).split()
    return [each for each in CONTROLLERS if each in words]


def _made_in_the_best(folders: list[str], name: str) -> str:
    """Where the most can be limited; of those, the nearest."""

    def hands_down(folder: str) -> int:
        return sum(each in " ".join(_lines(f"{folder}/cgroup.subtree_control")).split() for each in CONTROLLERS)

    return _made(sorted(folders, key=hands_down, reverse=True), name)


def _made(folders: list[str], name: str) -> str:
    """The first that lets this process make a group and move into it."""
    for folder in folders:
        if os.access(f"{folder}/cgroup.procs", os.W_OK, effective_ids=True):
            with contextlib.suppress(OSError):
                Path(folder, name).mkdir()
                return str(Path(folder, name))
    return ""
