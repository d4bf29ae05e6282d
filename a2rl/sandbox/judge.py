"""The judge: a process that tests answers by calling them in their cells. It never runs a line of theirs.

Run by `CodePool` as `python -I -S`. The first line on its standard output says which confinement is in force; then a
case on each line of standard input is answered by an outcome. It ends when its input does, and its cells with it.

A test that does not come to an end, such as a sum up to the number that an answer returned, ends the judge: the alarm
is the kernel's, which no computation can delay. The pool starts another one.
"""

import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from a2rl.sandbox import landlock, plain
from a2rl.sandbox.cell import CellLimits, Cells, preload

MARGIN_S = 3
"""Of a test, beyond what the answer may take."""
MEMORY = 2 << 30


class AnswerFailed(Exception):
    """A call of the answer came to no value."""


class Call:
    """A stand-in for the answer's function: its calls happen in a cell."""

    def __init__(self, cell: socket.socket, deadline: float) -> None:
        self._cell, self._deadline, self._read = cell, deadline, b""

    def load(self, program: str, entry_point: str) -> None:
        self._ask(json.dumps({"program": program, "entry_point": entry_point}).encode() + b"\n")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._ask(plain.encode([list(arguments), named]))

    def _ask(self, line: bytes) -> Any:
        try:
            self._cell.sendall(line)
            match plain.decode(self._line()):
                case ["value", value]:
                    return value
                case ["raised", str(why)]:
                    raise AnswerFailed(why)
        except plain.NotPlain as error:
            raise AnswerFailed(str(error)) from error
        except OSError as error:
            raise AnswerFailed("the process ended") from error
        raise AnswerFailed("no reply of ours")

    def _line(self) -> bytes:
        while b"\n" not in self._read:
            left_s = max(0.0, self._deadline - time.monotonic())
            ready = select.select([self._cell, sys.stdin], [], [], left_s)[0]
            if sys.stdin in ready:  # no case comes before the last one is answered: the pool is gone
                raise SystemExit
            if not ready:
                raise AnswerFailed("took too long")
            block = self._cell.recv(1 << 16)
            if not block:
                raise AnswerFailed("the process ended")
            self._read += block
            if len(self._read) > plain.MAX_LINE:
                raise AnswerFailed("returned too much")
        line, _, self._read = self._read.partition(b"\n")
        return line


def judge(case: dict[str, str], cells: Cells, limits: CellLimits) -> str:
    """Why the answer fails; nothing if it passes."""
    signal.alarm(math.ceil(limits.wall_s) + MARGIN_S)
    cell, why = cells.start(), ""
    with cell:
        # Sending must not wait for an answer that does not read.
        cell.settimeout(limits.wall_s)
        try:
            call = Call(cell, time.monotonic() + limits.wall_s)
            call.load(case["program"], case["entry_point"])
            _test(case, call)
        except Exception as error:  # noqa: BLE001 - a test may fail in any way when it is given nonsense
            why = f"{type(error).__name__}: {error}"[:200]
        ended_by = cells.end()
    signal.alarm(0)
    return f"{why}: out of processor time" if ended_by == signal.SIGXCPU else why


def _test(case: dict[str, str], candidate: Callable[..., Any]) -> None:
    """Some tests use what comes before the function in the prompt, or the function by its name."""
    namespace: dict[str, Any] = {"__name__": "test"}
    exec(case["setup"], namespace)
    namespace[case["entry_point"]] = candidate
    exec(case["test"], namespace)
    namespace["check"](candidate)


def main(settings: str) -> None:
    chosen = json.loads(settings)
    limits = CellLimits(*chosen["limits"])
    preload()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    version = landlock.abi() if chosen["landlock"] else 0
    cells = Cells(limits, use_landlock=version > 0)
    try:
        cells.check()
    except OSError as error:
        _say({"error": str(error)})
        return
    _say({"landlock": version})
    for line in sys.stdin:
        _say({"why": judge(json.loads(line), cells, limits)})


def _say(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())
