"""Finds and ends all processes of an agent, whatever they are called and however they fork.

Contract: nothing here but `read_stat` raises, whatever a process is named and however /proc changes while it is read.
The caller of `end_tree` is a subreaper (`become_subreaper`): orphaned descendants become its children. Therefore, once
it has no children, no process of the agent is left. `end_tree` uses all of these methods that the machine supports, the
most reliable first:
- the control group's kill (cgroup.py), which no process can escape by forking;
- the kill of a signal scope: after `enter_signal_scope`, `kill(-1)` reaches all descendants and nothing else, in one
  system call;
- stopping every process until no new one is found, then killing them. A stopped process cannot fork.

Standard library only: the supervisor imports this module. psutil cannot do this: it raises when processes vanish, and
enumerates too slowly to catch up with a fork bomb.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.core.printable import printable
from a2rl.linux import landlock
from a2rl.linux.cgroup import ControlGroup

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
WAIT_FOR_ANY_KIND = 0x40000000
"""__WALL: includes children that were cloned without an exit signal."""
FREEZE_TIMEOUT_S = 1.0
"""How long stopping all processes may take, and how long to wait for a kill in one step before stopping them."""
REQUEST_TIMEOUT_S, MANY_PROCESSES = 0.5, 256
"""If there are this many processes, there is no grace period: they could use it to fork."""
MAX_SURVIVORS = 100
MAX_PROCESSES = 50_000
"""Processes examined in one pass, so that a fork bomb cannot keep it running for ever."""
PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_EXITING = 0x4
"""PF_EXITING"""
_FIRST_FIELD = 3
"""Number of the first field after the name in /proc/<pid>/stat, as counted in proc(5)."""


class Process(NamedTuple):
    """A process, as described by /proc."""

    pid: int
    name: str
    """The name, made printable."""
    state: str
    """One letter; Z and X mean that it has ended."""
    parent: int
    session: int
    started: int
    """Start time in clock ticks since boot; together with the pid, it identifies the process."""
    own_s: float
    """Processor time of all its threads."""
    reaped_s: float
    """Processor time of the descendants it has waited for."""
    flags: int = 0
    """Those of the kernel."""

    @property
    def is_alive(self) -> bool:
        """Whether its first thread is not a zombie, and is not becoming one: giving back much memory takes long, and no
        program runs meanwhile. Other threads may go on without it: see `living_thread`."""
        return self.state not in {"Z", "X"} and not self.flags & _EXITING


class Ended(NamedTuple):
    """The result of `end_tree`."""

    killed: int
    """Number of processes that were killed."""
    survivors: tuple[tuple[int, str], ...] = ()
    """Pid and printable name of those that could not be ended."""


def read_stat(pid: int, proc: Path = PROC) -> Process | None:
    """Reads a process; returns None if it has ended.

    Raises:
        OSError: /proc, which is mounted at `proc`, cannot be read.
    """
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:  # noqa: PTH123 - called thousands of times
            text = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    head, _, rest = text.rpartition(b")")  # a name may contain anything, including brackets and newlines
    fields = [b""] * _FIRST_FIELD + rest.split()
    name = head.partition(b"(")[2].decode("ascii", "backslashreplace")
    user, system, reaped_user, reaped_system = (int(field) / TICKS_PER_S for field in fields[14:18])
    return Process(
        pid, printable(name), fields[3].decode(), int(fields[4]), int(fields[6]), int(fields[22]), user + system,
        reaped_user + reaped_system, int(fields[9]),
    )  # fmt: skip


def read_process(pid: int) -> Process | None:
    """Reads a process; returns None if it has ended or cannot be read."""
    try:
        return read_stat(pid)
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not ending, though its first thread may have ended."""
    return living_thread(pid) is not None


def living_thread(pid: int) -> int | None:
    """Returns a thread of a process that is not ending: `pid` itself if possible, and None if there is none.

    Once the first thread has ended, /proc/<pid> has no command line, environment or open files; those of others do.
    """
    if (first := read_process(pid)) is None or first.is_alive:
        return pid if first else None
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return None
    return next((each for each in map(int, threads) if (found := read_process(each)) and found.is_alive), None)


def all_processes() -> Iterator[Process]:
    """Yields all visible processes of this machine."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - names alone
    except OSError:
        return
    for name in names:
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process


def descendants(root: int) -> Iterator[int]:
    """Yields all processes below `root`, without `root` itself, as soon as they are found."""
    if not Path("/proc/thread-self/children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        yield from _below({root}, list(all_processes()))
        return
    seen, queue = {root}, [root]
    while queue and len(seen) < MAX_PROCESSES:
        for child in children(queue.pop()):
            if child not in seen:
                seen.add(child)
                yield child
                queue.append(child)


def _below(roots: set[int], processes: list[Process]) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    queue = list(roots)
    while queue:
        below = children.pop(queue.pop(), [])
        yield from below
        queue += below


def children(pid: int) -> list[int]:
    """Returns the children of all threads of a process; empty on a kernel without CONFIG_PROC_CHILDREN."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with (
                contextlib.suppress(OSError, ValueError),
                open(f"/proc/{pid}/task/{task}/children", "rb") as file,  # noqa: PTH123
            ):
                found += map(int, file.read().split())
    return found


def die_with_parent() -> None:
    """Asks the kernel to kill the calling process when its parent ends."""
    landlock.LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_subreaper() -> None:
    """Makes this process adopt its orphaned descendants."""
    landlock.LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter_signal_scope() -> bool:
    """Limits the signals of this process to itself and its descendants, also as root.

    Returns:
        False if this kernel does not support it.
    """
    try:
        return landlock.scope_signals() and _is_enclosed()
    except OSError:
        return False


def _is_enclosed() -> bool:
    """Whether the signal scope is in force, found by trying to signal the parent."""
    try:
        os.kill(os.getppid() or 1, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def end_tree(group: ControlGroup | None, enclosed: bool, grace_s: float, limit_s: float) -> Ended:
    """Asks all descendants of this process to end, kills those that do not, and reaps them.

    Args:
        enclosed: Whether `enter_signal_scope` was called and returned True.
        grace_s: The time between the request and the kill.
        limit_s: The time after which to give up.
    """
    started = time.monotonic()
    seen = _request_end(enclosed)
    grace_s = grace_s if len(seen) < MANY_PROCESSES else 0.0
    while _reap() and time.monotonic() < started + grace_s:
        time.sleep(0.02)
    if _is_over(group):
        return Ended(len(seen))
    _raise_priority()
    ends_at_once = enclosed or (group is not None and group.ends_at_once)
    patience_s, pause_s = FREEZE_TIMEOUT_S if ends_at_once else 0.0, 0.001
    begun = time.monotonic()
    while time.monotonic() < started + limit_s:
        _kill_in_one_step(group, enclosed)
        if time.monotonic() >= begun + patience_s:
            seen |= _freeze_and_kill()
        if _is_over(group):
            return Ended(len(seen))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return Ended(len(seen), _survivors(group))


def _request_end(enclosed: bool) -> set[int]:
    """Sends SIGTERM to all descendants; returns those found, which may not be all if there are many."""
    seen: set[int] = set()
    end = time.monotonic() + REQUEST_TIMEOUT_S
    for pid in descendants(os.getpid()):
        seen.add(pid)
        if time.monotonic() > end:
            break
    for pid in {-1} if enclosed and _is_enclosed() else seen:
        send_signal(pid, signal.SIGTERM)
        send_signal(pid, signal.SIGCONT)  # a stopped process would not receive it
    return seen


def _is_over(group: ControlGroup | None) -> bool:
    """Whether nothing is left: a subreaper without children has no descendants either."""
    return not _reap() and not (group is not None and group.members())


def send_signal(pid: int, number: signal.Signals) -> None:
    """Sends a signal, unless the process has ended or may not be signalled."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _kill_in_one_step(group: ControlGroup | None, enclosed: bool) -> None:
    """Kills all processes in one step, where the machine supports that."""
    if group is not None:
        group.kill()
    if enclosed and _is_enclosed():
        send_signal(-1, signal.SIGKILL)


def _freeze_and_kill() -> set[int]:
    """Stops descendants until no new one is found, then kills them."""
    stopped: set[int] = set()
    end, is_new = time.monotonic() + FREEZE_TIMEOUT_S, True
    while is_new and time.monotonic() < end:
        is_new = False
        for pid in descendants(os.getpid()):
            if pid not in stopped:
                send_signal(pid, signal.SIGSTOP)
                stopped.add(pid)
                is_new = True
    for pid in stopped:
        send_signal(pid, signal.SIGKILL)
    return stopped


def _raise_priority() -> None:
    """Raises this process's priority where allowed, so that many agent processes cannot delay their end."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))


def _reap() -> bool:
    """Reaps ended children; returns True while there are others."""
    with contextlib.suppress(OSError):
        for _ in range(MAX_PROCESSES):
            if not os.waitpid(-1, os.WNOHANG | WAIT_FOR_ANY_KIND)[0]:
                break
        return True
    return False


def reap_all_but(kept: int) -> None:
    """Reaps children as they end, so that their pids become free; returns when `kept` or all have ended."""
    with contextlib.suppress(OSError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | WAIT_FOR_ANY_KIND):
            if found.si_pid == kept:
                return
            os.waitpid(found.si_pid, os.WNOHANG | WAIT_FOR_ANY_KIND)


def _survivors(group: ControlGroup | None) -> tuple[tuple[int, str], ...]:
    pids = {*descendants(os.getpid()), *(group.members() if group else ())}
    return tuple(
        (each.pid, each.name) for pid in sorted(pids) if (each := read_process(pid)) is not None and is_alive(pid)
    )[:MAX_SURVIVORS]
