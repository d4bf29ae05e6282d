"""Ends the processes of an agent whose supervisor was killed, with the trace that the supervisor wrote before.

    trace = ProcessTrace.begin(marker, group)              # the supervisor, at the start
    trace = trace.update(os.getpid()); trace.write(path)   # the supervisor, repeatedly
    end_orphans(path)                                      # another process, after the supervisor was killed

A process belongs to the agent if one of these is true:
- it is in the agent's control group;
- it was seen below the supervisor, or belongs to a session that was seen there;
- its environment contains the marker, a secret that the agent was started with;
- it descends from such a process.

The working directory and the name of a process do not count: a user's own shell in the workspace is not an orphan.
Standard library only (so no psutil): the supervisor imports this module.
"""

import contextlib
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.linux.cgroup import ControlGroup
from a2rl.linux.process_tree import (
    Process,
    all_processes,
    descendants,
    is_alive,
    living_thread,
    read_process,
    send_signal,
)

MARKER = "A2RL_MARKER"
"""An environment variable of the agent and all its descendants."""
TRACE = "processes.json"
"""The supervisor's trace, in the folder of a run's logs."""
TIMEOUT_S = 8.0
MAX_ENVIRONMENT = 1 << 20
MAX_SEEN = 5000


class ProcessTrace(NamedTuple):
    """What is known about an agent's processes."""

    marker: str
    boot: str
    """The boot id of the machine; after a reboot, nothing of the agent is left."""
    unified: str
    controllers: dict[str, str]
    """The control group; see `ControlGroup`."""
    seen: tuple[tuple[int, int], ...] = ()
    """Pid and start time of processes."""
    sessions: tuple[tuple[int, int], ...] = ()
    """Sessions that the agent created: the id, and the start time of the leader (0 if it had ended). The kernel does
    not reuse an id while the session has members."""

    @classmethod
    def begin(cls, marker: str, group: ControlGroup | None) -> "ProcessTrace":
        """Returns the trace of an agent that has not started yet."""
        return cls(marker, _boot(), *(group or ControlGroup("", {})))

    @classmethod
    def read(cls, path: Path) -> "ProcessTrace | None":
        """Reads a trace; returns None if there is none, or if it was written before the last reboot."""
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
    def group(self) -> ControlGroup:
        """The agent's control group."""
        return ControlGroup(self.unified, self.controllers)

    def update(self, root: int) -> "ProcessTrace":
        """Returns the trace with the processes that are below `root` now. It keeps sessions that still have members."""
        here = {pid: found for pid in list(descendants(root))[:MAX_SEEN] if (found := read_process(pid)) is not None}
        sessions = {each: here[each].started if each in here else 0 for each in {it.session for it in here.values()}}
        sessions = {**sessions, **{each: led for each, led in self.sessions if led or each not in sessions}}
        if sessions.keys() - {each.session for each in here.values()}:
            populated = {each.session for each in all_processes()}
            sessions = {each: led for each, led in sessions.items() if each in populated}
        sessions.pop(os.getsid(0), None)
        seen = tuple((each.pid, each.started) for each in here.values())
        return self._replace(seen=seen, sessions=tuple(sessions.items()))

    def write(self, path: Path) -> None:
        """Writes the trace atomically."""
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        with contextlib.suppress(OSError):  # the disk is full: the previous trace still helps
            part.write_text(json.dumps(self._asdict()), encoding="ascii")
            part.replace(path)


def short_link(marker: str) -> Path:
    """Returns the short link to an agent's temporary folder. Only who knows the marker, the secret, knows its name."""
    return Path("/tmp", f"a2rl-{hashlib.sha256(marker.encode()).hexdigest()[:12]}")


def has_orphans(path: Path) -> bool:
    """Whether a process from the trace in this file is alive."""
    trace = ProcessTrace.read(path)
    return trace is not None and bool(_orphans(trace, set(trace.seen)))


def end_orphans(path: Path) -> tuple[tuple[int, str], ...]:
    """Ends the orphans of an agent.

    Args:
        path: The trace of its supervisor; the file is removed when nothing is left.

    Returns:
        Pid and name of the processes that could not be ended.
    """
    trace = ProcessTrace.read(path)
    left = end_traced_processes(trace) if trace is not None else ()
    if not left:
        path.unlink(missing_ok=True)
    return left


def end_traced_processes(trace: ProcessTrace) -> tuple[tuple[int, str], ...]:
    """Ends the orphans of an agent, as `end_orphans` does, for a trace in memory."""
    deadline, known = time.monotonic() + TIMEOUT_S, set(trace.seen)
    while True:
        trace.group.kill()
        orphans = _orphans(trace, known)
        if not orphans:
            trace.group.remove()
            with contextlib.suppress(OSError):
                short_link(trace.marker).unlink()
            return ()
        known |= {(each.pid, each.started) for each in orphans}
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in orphans:
                if (now := read_process(each.pid)) is not None and now.started == each.started:
                    send_signal(each.pid, number)
        if time.monotonic() > deadline:
            return tuple((each.pid, each.name) for each in orphans if _is_there(each))
        time.sleep(0.01)


def _orphans(trace: ProcessTrace, known: set[tuple[int, int]]) -> list[Process]:
    """Returns the processes of the agent that are alive."""
    members, ours = trace.group.members(), _ancestors()
    processes = {each.pid: each for each in all_processes()}
    # A session whose leader has another start time is another session with the same id.
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
    return [processes[pid] for pid in found - ours if is_alive(pid)]


def _ancestors() -> set[int]:
    """Returns this process and its ancestors, which are never orphans."""
    found, pid = {0, 1}, os.getpid()
    while pid not in found:
        found.add(pid)
        process = read_process(pid)
        pid = process.parent if process else 1
    return found


def _has(pid: int, marker: str) -> bool:
    if not marker:
        return False
    try:
        with open(f"/proc/{living_thread(pid)}/environ", "rb") as file:  # noqa: PTH123 - called for every process of the machine
            return f"{MARKER}={marker}".encode() in file.read(MAX_ENVIRONMENT)
    except OSError:
        return False  # another user's process, or it has ended


def _is_there(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and is_alive(now.pid) and now.started == process.started


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
