"""Records the processes of an agent: command lines with start and end, processor time, and the files that were open.

    {"event": "started", "started_s": 3.1, "pid": 812, "parent": 790, "command": ["python", "code/train.py"]}
    {"event": "ended", "ended_s": 65.0, "pid": 812, "cpu_s": 120.4, "read": ["data/train.jsonl"], "wrote": [...]}

Each pass of the recorder looks once. So a process that lives for less than the pause between two passes may be missed,
a process is seen to end at the next pass, and files are known only if they were open at the moment of a pass.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from a2rl.core.event_log import EventLog
from a2rl.core.printable import printable
from a2rl.linux.process_tree import TICKS_PER_S, Process, descendants, living_thread, read_process

MAX_ARGUMENTS, MAX_ARGUMENT_CHARS = 64, 500
MAX_COMMAND_BYTES = 1 << 16
MAX_PROCESSES = 500
"""Processes that are looked at in a pass."""
FULL = "full"
"""The event that says that processes are not recorded, or not with their files, or later code is not."""
MAX_LINES = 100_000
"""Processes of an attempt that are recorded: more than an agent starts that looks once a second, for a day."""
MAX_OPEN, MAX_FILES = 1024, 60
"""Open files that are examined in a pass, and files that are recorded, for each process."""
WRITES = os.O_WRONLY | os.O_RDWR


@dataclass
class _Seen:
    """What is known of a running process."""

    pid: int
    command: list[str]
    cpu_s: float = 0.0
    read: set[str] = field(default_factory=set)
    wrote: set[str] = field(default_factory=set)


class ProcessLog:
    """Notes which processes there are below a supervisor.

    Args:
        workspace: The agent's folder; only files in it are recorded.
        on_cut: Called, with the reason, when not all files of a process are recorded. An honest program may open many,
            so this does not make the record a full one.
    """

    def __init__(
        self, log: EventLog, supervisor: int, workspace: Path, on_cut: Callable[[str], object] = lambda what: None
    ) -> None:
        self._log, self._supervisor, self._workspace, self._on_cut = log, supervisor, str(workspace), on_cut
        self._running: dict[tuple[int, int], _Seen] = {}
        self._lines, self._is_full = 0, False

    def look(self, elapsed_s: float) -> None:
        """Notes what has started and ended since the last call; `elapsed_s` is the budget clock, in seconds."""
        present = {(process.pid, process.started): (process, thread) for process, thread in self._present()}
        for key in [key for key in self._running if key not in present]:
            self._end(self._running.pop(key), elapsed_s)
        for process, thread in present.values():
            self._examine(process, thread, elapsed_s)

    def close(self, elapsed_s: float) -> None:
        """Notes the end of all processes; call it when the agent has ended."""
        for seen in self._running.values():
            self._end(seen, elapsed_s)
        self._running.clear()

    def _present(self) -> Iterator[tuple[Process, int]]:
        """Yields each process with a thread of it that goes on: the first may have ended."""
        for place, pid in enumerate(descendants(self._supervisor)):
            if place >= MAX_PROCESSES:
                self.note_full()
                return
            process, thread = read_process(pid), living_thread(pid)
            if process is not None and thread is not None:
                yield process, thread

    def _examine(self, process: Process, thread: int, elapsed_s: float) -> None:
        key, command = (process.pid, process.started), _command(thread)
        if command is None:
            return
        seen = self._running.get(key)
        if seen is None or seen.command != command:  # a new process, or one that executes another program
            if seen is not None:
                self._end(seen, elapsed_s)
            elif self._lines >= MAX_LINES:
                self.note_full()
                return
            seen = self._running[key] = _Seen(process.pid, command)
            self._lines += 1
            age_s = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / TICKS_PER_S)
            started_s = round(max(0.0, elapsed_s - age_s), 1)
            self._log.write(
                event="started", started_s=started_s, pid=process.pid, parent=process.parent, command=command
            )
        seen.cpu_s = process.own_s
        self._note_files(seen, thread)

    def note_full(self) -> None:
        """Notes, once, that there are processes that are not recorded, or something else of the agent."""
        if not self._is_full:
            self._is_full = True
            self._log.write(event=FULL)

    def _note_files(self, seen: _Seen, thread: int) -> None:
        try:
            numbers = _open_numbers(thread)
            for path, is_written in _open_files(thread, numbers[:MAX_OPEN], self._workspace):
                files = seen.wrote if is_written else seen.read
                if len(files) < MAX_FILES:
                    files.add(path)
                elif path not in files:
                    self._on_cut(f"process {seen.pid} has opened more than {MAX_FILES} files")
            if len(numbers) > MAX_OPEN:
                self._on_cut(f"process {seen.pid} has more than {MAX_OPEN} files open")
        except PermissionError:  # an agent can hide what a program has open: by a program that nobody may read
            if living_thread(thread) == thread:
                self.note_full()

    def _end(self, seen: _Seen, elapsed_s: float) -> None:
        self._log.write(
            event="ended",
            ended_s=round(elapsed_s, 1),
            pid=seen.pid,
            cpu_s=round(seen.cpu_s, 2),
            read=sorted(seen.read),
            wrote=sorted(seen.wrote),
        )


def _command(thread: int) -> list[str] | None:
    """Returns the command line; None if the thread has ended or has none yet."""
    try:
        with Path(f"/proc/{thread}/cmdline").open("rb") as file:
            raw = file.read(MAX_COMMAND_BYTES)
    except OSError:
        return None
    words = raw.rstrip(b"\0").split(b"\0")[:MAX_ARGUMENTS]
    return [printable(word.decode("utf-8", "replace"), MAX_ARGUMENT_CHARS) for word in words] if raw else None


def _open_numbers(thread: int) -> list[str]:
    """Returns the numbers of what is open, with one more than are examined if there are more."""
    with suppress(FileNotFoundError, ProcessLookupError), os.scandir(f"/proc/{thread}/fd") as files:
        return [file.name for file in islice(files, MAX_OPEN + 1)]
    return []


def _open_files(thread: int, numbers: Iterable[str], workspace: str) -> Iterator[tuple[str, bool]]:
    """Yields the open files in the workspace, relative to it, and whether each is open for writing."""
    for number in numbers:
        try:
            path = os.readlink(f"/proc/{thread}/fd/{number}")  # noqa: PTH115 - text
            if path.startswith(f"{workspace}/"):
                flags = Path(f"/proc/{thread}/fdinfo/{number}").read_text().split("flags:", 1)[1].split(None, 1)[0]
                yield printable(path.removeprefix(f"{workspace}/"), MAX_ARGUMENT_CHARS), bool(int(flags, 8) & WRITES)
        except (OSError, ValueError, IndexError):
            continue
