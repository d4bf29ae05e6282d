"""The processes of an agent: found and ended, whatever they are called and however they fork.

Contract: nothing here raises, whatever a process is named, and however /proc changes while it is read. Whoever calls
`end_tree` is a subreaper (`become_subreaper`): what its children leave behind becomes its child, so that it has no
child left exactly when nothing is left. The ways to end, the surest first, all of them used that this machine has:
- the control group's kill (cgroup.py), which no process can fork away from;
- the kill of a signal domain: after `enclose`, `kill(-1)` reaches what this process started and nothing else, all of it
  in one system call;
- stopping every process until no new one is found, then killing them. A stopped process neither forks nor makes room
  for others that do.

Only the standard library is imported.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.isolation.cgroup import Group
from a2rl.printable import printable
from a2rl.sandbox import landlock

PR_SET_CHILD_SUBREAPER = 36
WAIT_FOR_ANY_KIND = 0x40000000
"""__WALL: children that were cloned without a signal for their end, too."""
FREEZE_S = 1.0
"""For stopping all; and for what ends them in one step to take effect, before that is tried."""
ASK_S, CROWD = 0.5, 256
"""So many processes are not waited for when they were asked to end: they might take the time to wait."""
MAX_SURVIVORS = 100
MANY = 50_000
"""Processes looked at in one go: none may fork for ever ahead of us."""
_FIRST_FIELD = 3
"""What stands first after the name in /proc/<pid>/stat, as proc(5) counts."""


class Process(NamedTuple):
    """What /proc says of a process."""

    pid: int
    name: str
    """Printable, whatever it is called."""
    state: str
    """One letter; Z and X: it has ended."""
    parent: int
    session: int
    started: int
    """In ticks since the machine's start; with the pid it is the process's identity."""

    @property
    def is_alive(self) -> bool:
        return self.state not in {"Z", "X"}


class Ended(NamedTuple):
    """What became of a tree."""

    killed: int
    """Processes that had to be ended."""
    survivors: tuple[tuple[int, str], ...] = ()
    """Pid and printable name of those that could not be."""


def look(pid: int) -> Process | None:
    """None: it is gone, or cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - thousands of times, in a hurry
            text = file.read(4096)
        head, _, rest = text.rpartition(b")")
        fields = [b""] * _FIRST_FIELD + rest.split()
        name = head.partition(b"(")[2].decode("ascii", "backslashreplace")
        return Process(pid, printable(name), fields[3].decode(), int(fields[4]), int(fields[6]), int(fields[22]))
    except (OSError, ValueError, IndexError):
        return None


def all_processes() -> Iterator[Process]:
    """Those of this machine that can be seen."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - names alone
    except OSError:
        return
    for name in names:
        if name.isdigit() and (process := look(int(name))) is not None:
            yield process


def descendants(root: int) -> Iterator[int]:
    """All processes below `root`, each as soon as it is found; the root itself is not among them."""
    if not Path("/proc/thread-self/children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        yield from _below({root}, list(all_processes()))
        return
    seen, queue = {root}, [root]
    while queue and len(seen) < MANY:
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
    """Of a process and all its threads; none on a kernel without CONFIG_PROC_CHILDREN."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with (
                contextlib.suppress(OSError, ValueError),
                open(f"/proc/{pid}/task/{task}/children", "rb") as file,  # noqa: PTH123
            ):
                found += map(int, file.read().split())
    return found


def become_subreaper() -> None:
    """From now on, what this process's children leave behind becomes its child."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enclose() -> bool:
    """From now on signals of this process reach itself and what it starts, as root too; False: not on this kernel."""
    try:
        return landlock.scope_signals() and _is_enclosed()
    except OSError:
        return False


def _is_enclosed() -> bool:
    """Whether signals to all reach nobody else, found by trying: the process that started this one is out of reach."""
    try:
        os.kill(os.getppid() or 1, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def end_tree(group: Group | None, enclosed: bool, grace_s: float, limit_s: float) -> Ended:
    """Asks every descendant to end, kills what does not, and reaps.

    Args:
        group: that they are in.
        enclosed: whether signals of this process reach its descendants alone: `enclose` was called, and returned True.
        grace_s: between the request and the kill.
        limit_s: after which it gives up.
    """
    started = time.monotonic()
    seen = _ask(enclosed)
    grace_s = grace_s if len(seen) < CROWD else 0.0
    while _reap() and time.monotonic() < started + grace_s:
        time.sleep(0.02)
    if _is_over(group):
        return Ended(len(seen))
    _hurry()
    ends_at_once = enclosed or (group is not None and group.ends_at_once)
    patience_s, pause_s = FREEZE_S if ends_at_once else 0.0, 0.001
    begun = time.monotonic()
    while time.monotonic() < started + limit_s:
        _strike(group, enclosed)
        if time.monotonic() >= begun + patience_s:
            seen |= _freeze_and_kill()
        if _is_over(group):
            return Ended(len(seen))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    return Ended(len(seen), _survivors(group))


def _ask(enclosed: bool) -> set[int]:
    """Sends everyone the request to end; who was found, in a crowd not all."""
    seen: set[int] = set()
    end = time.monotonic() + ASK_S
    for pid in descendants(os.getpid()):
        seen.add(pid)
        if time.monotonic() > end:
            break
    for pid in {-1} if enclosed and _is_enclosed() else seen:
        send(pid, signal.SIGTERM)
        send(pid, signal.SIGCONT)  # a stopped process would not see it
    return seen


def _is_over(group: Group | None) -> bool:
    """Whether nothing is left: a subreaper without children has no descendants either."""
    return not _reap() and not (group is not None and group.members())


def send(pid: int, number: signal.Signals) -> None:
    """A signal; who is gone or out of reach does not get it."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _strike(group: Group | None, enclosed: bool) -> None:
    """Kills all that there is in one step, where there is such a step."""
    if group is not None:
        group.kill()
    if enclosed and _is_enclosed():
        send(-1, signal.SIGKILL)


def _freeze_and_kill() -> set[int]:
    """Stops every descendant, until none is found that was not stopped; then kills them."""
    stopped: set[int] = set()
    end, is_new = time.monotonic() + FREEZE_S, True
    while is_new and time.monotonic() < end:
        is_new = False
        for pid in descendants(os.getpid()):
            if pid not in stopped:
                send(pid, signal.SIGSTOP)
                stopped.add(pid)
                is_new = True
    for pid in stopped:
        send(pid, signal.SIGKILL)
    return stopped


def _hurry() -> None:
    """Ahead of all others, where that is allowed: a crowd of processes must not take the time to end them."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))


def _reap() -> bool:
    """Collects ended children; True while there are others."""
    with contextlib.suppress(OSError):
        for _ in range(MANY):
            if not os.waitpid(-1, os.WNOHANG | WAIT_FOR_ANY_KIND)[0]:
                break
        return True
    return False


def reap_all_but(kept: int) -> None:
    """Collects children as they end, so that their numbers are free; returns when `kept` has ended, or all have."""
    with contextlib.suppress(OSError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | WAIT_FOR_ANY_KIND):
            if found.si_pid == kept:
                return
            os.waitpid(found.si_pid, os.WNOHANG | WAIT_FOR_ANY_KIND)


def _survivors(group: Group | None) -> tuple[tuple[int, str], ...]:
    pids = {*descendants(os.getpid()), *(group.members() if group else ())}
    return tuple((each.pid, each.name) for pid in sorted(pids) if (each := look(pid)) is not None and each.is_alive)[
        :MAX_SURVIVORS
    ]
