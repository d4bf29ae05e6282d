"""The tester: a process that tests answers by calling them in their cells. It never executes a line of them.

Run by `CodePool` as `python -I -S`. The first line on its standard output says which confinement is in force; then it
reads one case per line from standard input and answers each with an outcome. When its input closes, it ends, and its
cells with it.

A test that does not finish, such as a sum up to a number that an answer returned, ends the tester: the alarm comes from
the kernel, which no computation can delay. The pool then starts another tester.

An outcome is not sure if the cell was killed without having used up its processor time: the answer may have needed too
much time or closed its connection, but the machine may also be too busy, or may have run out of memory. It is sure if
the answer slept: then neither the cell nor the tester computed or waited for a processor during most of the time.
"""

import contextlib
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
from pathlib import Path
from typing import Any

from a2rl.code_execution.cell import MAX_LINE, CellLimits, Cells, NotPlainError, decode, encode, preload
from a2rl.linux import landlock
from a2rl.linux.resources import lower_limit

MARGIN_S = 3
"""Time of a test beyond the wall time of the answer."""
MEMORY = 2 << 30


class AnswerFailedError(Exception):
    """A call of the answer returned no value."""


class RemoteFunction:
    """A proxy for the answer's function: its calls happen in a cell."""

    def __init__(self, cell: socket.socket, deadline: float) -> None:
        self._cell, self._deadline, self._read = cell, deadline, b""
        self.is_ready = False
        """Whether the cell could be set up."""
        self.is_lost = False
        """Whether the cell has ended, or was silent for too long."""
        self.is_late = False
        """Whether it was silent for too long."""

    def load(self, program: str, entry_point: str) -> None:
        """Loads a program in the cell.

        Raises:
            AnswerFailedError: It cannot be loaded, or does not define the function.
        """
        self._line()
        self.is_ready = True
        self._ask(json.dumps({"program": program, "entry_point": entry_point}).encode() + b"\n")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the function in the cell; raises AnswerFailedError if it returns no value."""
        return self._ask(encode([list(arguments), named]))

    def _ask(self, line: bytes) -> Any:
        try:
            self._cell.sendall(line)
            match decode(self._line()):
                case ["value", value]:
                    return value
                case ["raised", str(why)]:
                    raise AnswerFailedError(why)
        except NotPlainError as error:
            raise AnswerFailedError(str(error)) from error
        except OSError as error:
            raise self._lost("the process ended") from error
        raise AnswerFailedError("it sent no valid reply")

    def _line(self) -> bytes:
        while b"\n" not in self._read:
            left_s = max(0.0, self._deadline - time.monotonic())
            ready = select.select([self._cell, sys.stdin], [], [], left_s)[0]
            if sys.stdin in ready:  # no case is sent before the last one is answered, so the pool has ended
                raise SystemExit
            if not ready:
                self.is_late = True
                raise self._lost("took too long")
            block = self._cell.recv(1 << 16)
            if not block:
                raise self._lost("the process ended")
            self._read += block
            if len(self._read) > MAX_LINE:
                raise AnswerFailedError("returned too much")
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _lost(self, why: str) -> AnswerFailedError:
        self.is_lost = True
        return AnswerFailedError(why)


def test_answer(case: dict[str, str], cells: Cells, limits: CellLimits) -> dict[str, Any]:
    """Tests an answer; returns why it fails (empty if it passes), and whether that is sure."""
    signal.alarm(math.ceil(limits.wall_s) + MARGIN_S)
    signal.setitimer(signal.ITIMER_PROF, limits.wall_s)
    cell, why, before_s = cells.start(), "", processor_s(os.getpid())
    with cell:
        # Sending must not block on an answer that does not read.
        cell.settimeout(limits.wall_s)
        function = RemoteFunction(cell, time.monotonic() + limits.wall_s)
        try:
            function.load(case["program"], case["entry_point"])
            _run_test(case, function)
        except Exception as error:  # noqa: BLE001 - a test may raise anything when the answer returns nonsense
            why = f"{type(error).__name__}: {error}"[:200]
        needed_s = processor_s(cells.pid) + processor_s(os.getpid()) - before_s
        ended_by = cells.end()
    signal.alarm(0)
    signal.setitimer(signal.ITIMER_PROF, 0)
    slept = function.is_late and needed_s < limits.wall_s / 2
    is_sure = function.is_ready and (slept or not (function.is_lost and ended_by == signal.SIGKILL))
    return {"why": f"{why}: out of processor time" if ended_by == signal.SIGXCPU else why, "is_sure": is_sure}


def processor_s(pid: int) -> float:
    """Returns for how many seconds a process has computed or waited for a processor.

    Infinite if the kernel does not say so, or if the process has ended, was stopped or waits for the disk.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        computed, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except OSError:
        return math.inf
    return (int(computed) + int(waited)) / 1e9 if state in "RS" and int(computed) else math.inf


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
    with contextlib.suppress(OSError):  # where memory runs out, answers go first
        Path("/proc/self/oom_score_adj").write_text("1000")
    chosen = json.loads(settings)
    limits = CellLimits(*chosen["limits"])
    preload()
    lower_limit(resource.RLIMIT_AS, MEMORY)
    lower_limit(resource.RLIMIT_CORE, 0)
    version = landlock.abi() if chosen["landlock"] else 0
    cells = Cells(limits, use_landlock=version > 0)
    try:
        cells.check()
    except OSError as error:
        _write_line({"error": str(error)})
        return
    _write_line({"landlock": version})
    for line in sys.stdin:
        _write_line(test_answer(json.loads(line), cells, limits))


def _write_line(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())
