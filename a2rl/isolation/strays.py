"""What an agent left behind that lost its supervisor: found by what was written down while it lived, and ended.

    trace = Trace.begin(marker, group)        # the supervisor
    trace.look().write(path)                  # again and again
    end_strays(path)                          # whoever has to end it in the supervisor's place

A process is the agent's if it is in the agent's control group, or was seen below the supervisor, or belongs to a
session that was, or has the marker, a secret that the agent was started with, in its environment, or descends from one
of these. Where it works, and what it is called, says nothing: a user's own shell in the workspace is no stray.
Only the standard library is imported.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.isolation.cgroup import Group
from a2rl.isolation.tree import Process, all_processes, descendants, look, send

MARKER = "A2RL_MARKER"
"""A variable in the environment of an agent and all that it starts."""
LIMIT_S = 8.0
MAX_ENVIRONMENT = 1 << 20
MAX_SEEN = 5000


class Trace(NamedTuple):
    """What is known of an agent's processes."""

    marker: str
    boot: str
    """Of the machine; after another start nothing of the agent is left."""
    unified: str
    controllers: dict[str, str]
    """The control group."""
    seen: tuple[tuple[int, int], ...] = ()
    """Pid and start."""
    sessions: tuple[tuple[int, int], ...] = ()
    """That the agent made: number, and start of the process that leads it, 0 if that had ended. A number is not used
    again while the session has members."""

    @classmethod
    def begin(cls, marker: str, group: Group | None) -> "Trace":
        """Of an agent that is not started yet."""
        return cls(marker, _boot(), *(group or Group("", {})))

    @classmethod
    def read(cls, path: Path) -> "Trace | None":
        """None: nothing was written down, or not on this start of the machine."""
        try:
            fields: dict[str, Any] = json.loads(path.read_bytes())
            pairs = {
                name: tuple((int(number), int(started)) for number, started in fields[name])
                for name in ("seen", "sessions")
            }
            trace = cls(**{**fields, **pairs})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return trace if trace.boot == _boot() else None

    @property
    def group(self) -> Group:
        return Group(self.unified, self.controllers)

    def look_below(self, root: int) -> "Trace":
        """With the processes that are below `root` now. Sessions are kept while somebody is in them."""
        here = {pid: found for pid in list(descendants(root))[:MAX_SEEN] if (found := look(pid)) is not None}
        sessions = {each: here[each].started if each in here else 0 for each in {it.session for it in here.values()}}
        sessions = {**sessions, **{each: led for each, led in self.sessions if led or each not in sessions}}
        if sessions.keys() - {each.session for each in here.values()}:
            populated = {each.session for each in all_processes()}
            sessions = {each: led for each, led in sessions.items() if each in populated}
        sessions.pop(os.getsid(0), None)
        seen = tuple((each.pid, each.started) for each in here.values())
        return self._replace(seen=seen, sessions=tuple(sessions.items()))

    def write(self, path: Path) -> None:
        """So that a reader finds all of it, or what was there before."""
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        with contextlib.suppress(OSError):  # the disk is full: what was written before still helps
            part.write_text(json.dumps(self._asdict()), encoding="ascii")
            part.replace(path)


def is_anything_left(path: Path) -> bool:
    """Whether something that an agent left behind is alive, by the trace that its supervisor wrote there."""
    trace = Trace.read(path)
    return trace is not None and bool(_strays(trace, set(trace.seen)))


def end_strays(path: Path, limit_s: float = LIMIT_S) -> tuple[tuple[int, str], ...]:
    """Ends what an agent left behind; returns pid and name of what could not be ended.

    Args:
        path: where its supervisor wrote its trace. The file is removed when nothing is left.
        limit_s: after which it gives up.
    """
    trace = Trace.read(path)
    left = end_traced(trace, limit_s) if trace is not None else ()
    if not left:
        path.unlink(missing_ok=True)
    return left


def end_traced(trace: Trace, limit_s: float = LIMIT_S) -> tuple[tuple[int, str], ...]:
    """Likewise, for a trace in memory."""
    deadline, known = time.monotonic() + limit_s, set(trace.seen)
    while True:
        trace.group.kill()
        strays = _strays(trace, known)
        if not strays:
            trace.group.remove()
            return ()
        known |= {(each.pid, each.started) for each in strays}
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in strays:
                if (now := look(each.pid)) is not None and now.started == each.started:
                    send(each.pid, number)
        if time.monotonic() > deadline:
            return tuple((each.pid, each.name) for each in strays if _is_there(each))
        time.sleep(0.01)


def _strays(trace: Trace, known: set[tuple[int, int]]) -> list[Process]:
    """All that are alive."""
    members, ours = trace.group.members(), _ancestors()
    processes = {each.pid: each for each in all_processes()}
    # Led by another process than then, a session is another.
    sessions = {each for each, led in trace.sessions if each not in processes or processes[each].started == led}
    found = {
        each.pid
        for each in processes.values()
        if each.pid in members
        or (each.pid, each.started) in known
        or each.session in sessions
        or _has(each.pid, trace.marker)
    }
    while below := {each.pid for each in processes.values() if each.parent in found} - found:
        found |= below
    return [processes[pid] for pid in found - ours if processes[pid].is_alive]


def _ancestors() -> set[int]:
    """This process and those above it, which are nobody's strays."""
    found, pid = {0, 1}, os.getpid()
    while pid not in found:
        found.add(pid)
        process = look(pid)
        pid = process.parent if process else 1
    return found


def _has(pid: int, marker: str) -> bool:
    if not marker:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - all processes of the machine
            return f"{MARKER}={marker}".encode() in file.read(MAX_ENVIRONMENT)
    except OSError:
        return False  # another user's, or gone


def _is_there(process: Process) -> bool:
    now = look(process.pid)
    return now is not None and now.is_alive and now.started == process.started


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
