"""`CodePool`: tests many answers at once, with a running tester for each core.

See `a2rl.code_execution` for why its verdicts can be trusted.
"""

import json
import os
import queue
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import a2rl
from a2rl.code_execution.cell import CellLimits
from a2rl.core.errors import InfrastructureError
from a2rl.core.processes import end_child

START = "import sys; root, settings = sys.argv[1:]; sys.path.insert(0, root); from a2rl.code_execution import tester"
START += "; sys.path.remove(root); tester.main(settings)"
END_TIMEOUT_S = 10.0
MAX_TESTERS = 16
DEFAULT_LIMITS = CellLimits()


@dataclass(frozen=True)
class CodeCase:
    """An answer and its test. Everything except `program` is trusted."""

    program: str
    """The whole program: problem and answer."""
    entry_point: str
    """The name of the function to test."""
    setup: str
    """Further definitions for the test, such as the problem's helper functions."""
    test: str
    """Defines `check(candidate)`, which raises unless the function is right."""


class Outcome(NamedTuple):
    """The result of testing an answer."""

    passed: bool
    why: str
    """Why it did not pass; empty if it passed."""


class Layers(NamedTuple):
    """What confines answers on this machine. seccomp always does; without it, nothing is run."""

    landlock: int
    """The Landlock version, with which answers can read the standard library; 0: none, and they can open no files."""

    def __str__(self) -> str:
        files = f"Landlock (ABI {self.landlock}): files of the standard library" if self.landlock else "no files"
        return f"seccomp: computing only; {files}"


class CodePool:
    """A pool of running testers; close it, or use it as a context."""

    def __init__(self, limits: CellLimits = DEFAULT_LIMITS, most: int = MAX_TESTERS, use_landlock: bool = True) -> None:
        """Starts a tester for each available core, in a few tenths of a second.

        Args:
            limits: The limits of each answer.
            most: The maximum number of testers, for when there are fewer answers than cores.
            use_landlock: Whether to use Landlock; without it, answers are confined as on an old kernel.

        Raises:
            InfrastructureError: This machine cannot confine answers; the message says what is missing.
        """
        count = min(len(os.sched_getaffinity(0)), most)
        self._command = json.dumps({"limits": limits, "landlock": use_landlock})
        self._free: queue.Queue[_Tester] = queue.Queue()
        started = [_Tester(self._command) for _ in range(count)]
        try:
            [self.layers] = {tester.layers() for tester in started}
        except InfrastructureError:
            for tester in started:
                tester.close()
            raise
        for tester in started:
            self._free.put(tester)
        self._threads = ThreadPoolExecutor(count)

    def test(self, cases: Sequence[CodeCase]) -> list[Outcome]:
        """Tests answers; returns one outcome for each case, in order."""
        return list(self._threads.map(self._test, cases))

    def _test(self, case: CodeCase) -> Outcome:
        tester = self._free.get()
        try:
            for _ in range(2):  # a tester that dies may have been killed for lack of memory
                if (why := tester.ask(case)) is not None:
                    return Outcome(not why, why)
                tester.close()
                tester = _Tester(self._command)
                tester.layers()
            return Outcome(False, "the test did not come to an end")
        finally:
            self._free.put(tester)

    def close(self) -> None:
        """Ends all testers."""
        self._threads.shutdown()
        while not self._free.empty():
            self._free.get().close()

    def __enter__(self) -> "CodePool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Tester:
    """A tester's process, as seen by the pool."""

    def __init__(self, settings: str) -> None:
        root = str(Path(a2rl.__file__).parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START, root, settings],
            cwd="/",
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach the pipeline only
        )

    def layers(self) -> Layers:
        """Returns the confinement that it reports when it is ready."""
        said = self._line()
        if said is None or "error" in said:
            problem = said["error"] if said else "its process ended"
            raise InfrastructureError(
                f"code answers cannot be run here: {problem}; this needs Linux with seccomp on x86_64 or aarch64"
            )
        return Layers(said["landlock"])

    def ask(self, case: CodeCase) -> str | None:
        """Tests an answer; returns why it fails (empty if it passes), or None if the tester died."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(case.__dict__).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        said = self._line()
        return None if said is None else str(said["why"])

    def _line(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else None

    def close(self) -> None:
        try:
            end_child(self._process, END_TIMEOUT_S)
        except BrokenPipeError:
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
