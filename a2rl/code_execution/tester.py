"""The tester: a process that tests answers by calling them in their cells. It never executes a line of them.

Run by `CodePool` as `python -I -S`. The first line on its standard output says which confinement is in force; then it
reads one case per line from standard input and answers each with an outcome. When its input closes, it ends, and its
cells with it.

A test that does not finish, such as a sum up to a number that an answer returned, ends the tester: the alarm comes from
the kernel, which no computation can delay. The pool then starts another tester.
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

from a2rl.code_execution import values as plain
from a2rl.code_execution.cell import CellLimits, Cells, preload
from a2rl.linux import landlock

MARGIN_S = 3
"""Time of a test beyond the wall time of the answer."""
MEMORY = 2 << 30


class AnswerFailedError(Exception):
    """A call of the answer returned no value."""


class RemoteFunction:
    """A proxy for the answer's function: its calls happen in a cell."""

    def __init__(self, cell: socket.socket, deadline: float) -> None:
        self._cell, self._deadline, self._read = cell, deadline, b""

    def load(self, program: str, entry_point: str) -> None:
        """Loads a program in the cell.

        Raises:
            AnswerFailedError: It cannot be loaded, or does not define the function.
        """
        self._ask(json.dumps({"program": program, "entry_point": entry_point}).encode() + b"\n")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the function in the cell; raises AnswerFailedError if it returns no value."""
        return self._ask(plain.encode([list(arguments), named]))

    def _ask(self, line: bytes) -> Any:
        try:
            self._cell.sendall(line)
            match plain.decode(self._line()):
                case ["value", value]:
                    return value
                case ["raised", str(why)]:
                    raise AnswerFailedError(why)
        except plain.NotPlainError as error:
            raise AnswerFailedError(str(error)) from error
        except OSError as error:
            raise AnswerFailedError("the process ended") from error
        raise AnswerFailedError("it sent no valid reply")

    def _line(self) -> bytes:
        while b"\n" not in self._read:
            left_s = max(0.0, self._deadline - time.monotonic())
            ready = select.select([self._cell, sys.stdin], [], [], left_s)[0]
            if sys.stdin in ready:  # no case is sent before the last one is answered, so the pool has ended
                raise SystemExit
            if not ready:
                raise AnswerFailedError("took too long")
            block = self._cell.recv(1 << 16)
            if not block:
                raise AnswerFailedError("the process ended")
            self._read += block
            if len(self._read) > plain.MAX_LINE:
                raise AnswerFailedError("returned too much")
        line, _, self._read = self._read.partition(b"\n")
        return line


def test_answer(case: dict[str, str], cells: Cells, limits: CellLimits) -> str:
    """Tests an answer; returns why it fails, or an empty text."""
    signal.alarm(math.ceil(limits.wall_s) + MARGIN_S)
    cell, why = cells.start(), ""
    with cell:
        # Sending must not block on an answer that does not read.
        cell.settimeout(limits.wall_s)
        try:
            function = RemoteFunction(cell, time.monotonic() + limits.wall_s)
            function.load(case["program"], case["entry_point"])
            _run_test(case, function)
        except Exception as error:  # noqa: BLE001 - a test may raise anything when the answer returns nonsense
            why = f"{type(error).__name__}: {error}"[:200]
        ended_by = cells.end()
    signal.alarm(0)
    return f"{why}: out of processor time" if ended_by == signal.SIGXCPU else why


def _run_test(case: dict[str, str], candidate: Callable[..., Any]) -> None:
    """Runs the test. Some tests use definitions that precede the function in the prompt, or the function's own name."""
    namespace: dict[str, Any] = {"__name__": "test"}
    exec(case["setup"], namespace)
    namespace[case["entry_point"]] = candidate
    exec(case["test"], namespace)
    namespace["check"](candidate)


def main(settings: str) -> None:
    """Tests the cases on standard input.

    Args:
        settings: A JSON object with the limits of each answer and whether to use Landlock.
    """
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
        _write_line({"error": str(error)})
        return
    _write_line({"landlock": version})
    for line in sys.stdin:
        _write_line({"why": test_answer(json.loads(line), cells, limits)})


def _write_line(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())
