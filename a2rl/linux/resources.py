"""What an agent may use of the machine: memory, processes, cores and disk, so that enough is left for the grader.

    resources = Resources.of_machine(workspace, settings.environ)
    AgentCommand(..., resources=resources)              # the supervisor applies them

Control groups (cgroup.py) limit memory, processes and the agent's share of the cores. Without control groups:
- processes: RLIMIT_NPROC counts all processes of the user, so the running ones are added; it does not apply
  to root, whose agent the supervisor ends when it has more;
- memory: there is no limit, because RLIMIT_AS and RLIMIT_DATA would break CUDA, which reserves far more addresses than
  it uses. With and without control groups, the kernel ends the agent's processes first when memory runs out.

The disk is limited in both cases: RLIMIT_FSIZE limits each file, and sandbox/storage.py measures all of them together.

Standard library only: the supervisor imports this module.
"""

import contextlib
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

GIB = 1 << 30
PROCESSES = 4096
"""Processes and threads together."""
GPU_NODES = ("nvidia", "dxg")
"""How the names of GPUs' device files begin; the second one is that of WSL, which opens all GPUs."""
VARIABLES = {
    "A2RL_AGENT_MEMORY_GIB": GIB,
    "A2RL_AGENT_PROCESSES": 1,
    "A2RL_AGENT_CORES": 100,
    "A2RL_AGENT_DISK_GIB": GIB,
}
"""The limits that a user can set, each with the number of its smallest parts: bytes, or a millisecond in 100."""
MOST = 1 << 62
"""More parts are no limit that the kernel takes, even with those in use added."""
OOM_SCORE_AGENT = 1000
OOM_SCORE_SUPERVISOR = -900
"""Values of oom_score_adj; see proc(5)."""


class Resources(NamedTuple):
    """Upper limits for all processes of an agent together; 0 means no limit."""

    memory: int = 0
    """In bytes."""
    processes: int = PROCESSES
    """Processes and threads."""
    cores: float = 0.0
    disk: int = 0
    """In bytes, for all folders that it can write to."""

    @classmethod
    def of(cls, fields: Sequence[Any]) -> "Resources":
        """Converts from JSON."""
        return cls._make(fields)

    @classmethod
    def of_machine(cls, folder: Path, environ: Mapping[str, str], used: int = 0) -> "Resources":
        """Returns what this machine can spare, or what the user set in VARIABLES.

        Args:
            folder: A folder on the disk that the agent writes to.
            environ: The user's environment.
            used: The bytes on that disk that the agent already has, from an earlier start, and may keep.

        Raises:
            ValueError: A variable is not a number that can be a limit.
        """
        memory, processes, cores, disk = (_number(name, environ, parts) for name, parts in VARIABLES.items())
        return cls(
            memory=int(memory * GIB) if memory is not None else spare_memory(),
            processes=int(processes) if processes is not None else PROCESSES,
            cores=cores or 0.0,
            disk=int(disk * GIB) if disk is not None else used + free_bytes(folder) // 2,
        )


def _number(name: str, environ: Mapping[str, str], parts: int) -> float | None:
    """Returns what a variable says. A mistyped limit must not stand for none, nor for another one."""
    if not (text := environ.get(name, "")):
        return None
    with contextlib.suppress(ValueError):
        if (number := float(text)) == 0 or 1 <= number * parts <= MOST:
            return number
    raise ValueError(f"{name}={text} is not a number that can be a limit (0: no limit)")


def spare_memory() -> int:
    """Returns the memory for the agent in bytes, of what the machine, a container or a job of a batch system has.

    The grader keeps an eighth of the machine's memory, at least 2 GiB but never more than a quarter.
    """
    from a2rl.core.cgroup_folders import memory_limits  # in bwrap, the launcher has only a2rl/linux and a2rl/sandbox

    total = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *memory_limits(), MOST)
    return total - min(max(2 * GIB, total // 8), total // 4)


def free_bytes(folder: Path) -> int:
    """Returns the free bytes on the disk of a folder."""
    return free_space(folder)[0]


def free_space(folder: Path) -> tuple[int, int]:
    """Returns the free bytes and inodes on the disk of a folder; some file systems have no limit of inodes."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else 1 << 62


def apply_limits(resources: Resources, held: Sequence[str], running: int) -> None:
    """Limits the calling process and all its future children.

    Args:
        held: The controllers that a control group already limits.
        running: How many processes and threads the user has now.
    """
    _set_oom_score(OOM_SCORE_AGENT)
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_RTPRIO: 0, resource.RLIMIT_NICE: 0}
    if resources.disk:
        limits[resource.RLIMIT_FSIZE] = resources.disk
    if resources.processes and "pids" not in held:
        limits[resource.RLIMIT_NPROC] = running + resources.processes
    for kind, most in limits.items():
        with contextlib.suppress(OSError, ValueError):
            lower_limit(kind, most)


def lower_limit(kind: int, most: int, margin: int = 0) -> None:
    """Limits the calling process and all its future children, or leaves them the lower hard limit that they have.

    Args:
        kind: One of `resource.RLIMIT_...`.
        most: The limit.
        margin: How far above it the hard limit is.
    """
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = max(0, min(most, hard - margin))
    resource.setrlimit(kind, (most, most + margin))


def protect_from_oom_killer() -> None:
    """Makes this process one of the last that the kernel ends when memory runs out; has no effect without root."""
    _set_oom_score(OOM_SCORE_SUPERVISOR)


def _set_oom_score(score: int) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


def count_user_tasks() -> int:
    """Returns the number of processes and threads of this user."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone
        if name.isdigit():
            with contextlib.suppress(OSError):
                if Path("/proc", name).stat().st_uid == user:
                    count += count_tasks(int(name))
    return count


def count_tasks(pid: int) -> int:
    """Returns the number of threads of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    return 0


def open_files() -> set[int]:
    """Returns the numbers of this process's open files. Those up to the limit may be a thousand million."""
    return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - names alone


def close_files(numbers: Iterable[int]) -> None:
    """Closes files of this process; some may be closed already."""
    for number in numbers:
        with contextlib.suppress(OSError):
            os.close(number)


def raise_file_limit() -> tuple[int, int]:
    """Raises the soft limit of open files to the hard limit; returns both previous limits, for child processes."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def restore_file_limit(before: tuple[int, int]) -> None:
    """Restores limits that `raise_file_limit` returned."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
