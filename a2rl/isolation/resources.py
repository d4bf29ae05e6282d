"""What an agent may use of the machine: memory, processes, cores, disk. The grader must get what it needs beside it.

    resources = Resources.of_machine(workspace, settings.environ)
    AgentCommand(..., resources=resources)              # the supervisor does the rest

Control groups (cgroup.py) hold memory, processes and the weight of the agent on the cores. Where there are none:
- processes: RLIMIT_NPROC, which counts all that the user runs, so that what runs already is added; root has no limit;
- memory: RLIMIT_AS and RLIMIT_DATA would break CUDA, which reserves addresses far beyond what it uses. The agent's
  processes are marked as the first to be ended when the machine's memory is used up, in every case;
- disk: RLIMIT_FSIZE for each file, and measuring (disk.py) for all of them.

Only the standard library is imported.
"""

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

GIB = 1 << 30
PROCESSES = 4096
"""Threads count as well."""
VARIABLES = ("A2RL_AGENT_MEMORY_GIB", "A2RL_AGENT_PROCESSES", "A2RL_AGENT_CORES", "A2RL_AGENT_DISK_GIB")
FIRST_TO_BE_ENDED = 1000
LAST_TO_BE_ENDED = -900
"""Of oom_score_adj, see proc(5)."""


class Resources(NamedTuple):
    """Upper limits, for all processes of an agent together; 0: none."""

    memory: int = 0
    """In bytes."""
    processes: int = PROCESSES
    """And threads."""
    cores: float = 0.0
    disk: int = 0
    """In bytes, of what lies in the folders that it can write to."""

    @classmethod
    def of(cls, fields: Sequence[Any]) -> "Resources":
        """From JSON."""
        return cls._make(fields)

    @classmethod
    def of_machine(cls, folder: Path, environ: Mapping[str, str]) -> "Resources":
        """What this machine can spare; VARIABLES change it.

        Args:
            folder: on the disk that the agent writes to.
            environ: the user's; a value that is no number counts as none.
        """
        memory, processes, cores, disk = (_number(environ.get(name, "")) for name in VARIABLES)
        return cls(
            memory=int(memory * GIB) if memory is not None else spare_memory(),
            processes=int(processes) if processes is not None else PROCESSES,
            cores=cores or 0.0,
            disk=int(disk * GIB) if disk is not None else free_bytes(folder) // 2,
        )


def _number(text: str) -> float | None:
    try:
        return max(0.0, float(text))
    except ValueError:
        return None


def spare_memory() -> int:
    """All but an eighth of the machine's memory, at least 2 GiB but never more than a quarter: that is the grader's."""
    total = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits_of_a_container(), 1 << 62)
    return total - min(max(2 * GIB, total // 8), total // 4)


def _limits_of_a_container() -> Iterator[int]:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            yield int(Path(path).read_text(encoding="ascii"))


def free_bytes(folder: Path) -> int:
    """On the disk of a folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def apply(resources: Resources, held: Sequence[str], running: int) -> None:
    """Limits the calling process and all that it starts.

    Args:
        held: what a control group limits already.
        running: processes and threads that the user has.
    """
    _set_score(FIRST_TO_BE_ENDED)
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_RTPRIO: 0, resource.RLIMIT_NICE: 0}
    if resources.disk:
        limits[resource.RLIMIT_FSIZE] = resources.disk
    if resources.processes and "pids" not in held:
        limits[resource.RLIMIT_NPROC] = running + resources.processes
    for kind, most in limits.items():
        with contextlib.suppress(OSError, ValueError):
            hard = resource.getrlimit(kind)[1]
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (limit, limit))


def be_ended_last() -> None:
    """When memory is used up; takes root's rights, and does nothing without them."""
    _set_score(LAST_TO_BE_ENDED)


def _set_score(score: int) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")


def count_running() -> int:
    """Processes and threads of this user."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone
        if name.isdigit():
            with contextlib.suppress(OSError):
                if Path("/proc", name).stat().st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count


def raise_file_limit() -> tuple[int, int]:
    """This process may open all the files that it is allowed to; returns what it was, for what it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def restore_file_limit(before: tuple[int, int]) -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
