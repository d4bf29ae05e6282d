"""`CodePool`: answers judged many at once, a warm judge for each core. See `a2rl.sandbox` for why its verdicts hold."""

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
from a2rl.errors import InfrastructureError
from a2rl.process import end_child
from a2rl.sandbox.cell import CellLimits

START = "import sys; root, settings = sys.argv[1:]; sys.path.insert(0, root); import a2rl.sandbox.judge as judge"
START += "; sys.path.remove(root); judge.main(settings)"
END_TIMEOUT_S = 10.0
MOST_JUDGES = 16
DEFAULT_LIMITS = CellLimits()


@dataclass(frozen=True)
class CodeCase:
    """An answer, and how it is tested. All but `program` is trusted."""

    program: str
    """The whole program: problem and answer."""
    entry_point: str
    """The function that is tested."""
    setup: str
    """What the test may use besides, such as the problem's helper functions."""
    test: str
    """Defines `check(candidate)`, which raises unless the function is right."""


class Outcome(NamedTuple):
    """What became of an answer."""

    passed: bool
    why: str
    """Why it did not pass."""


class Layers(NamedTuple):
    """What confines answers on this machine. seccomp always does; without it nothing is run."""

    landlock: int
    """Landlock's version: answers can read the standard library. 0: there is none, and they can open no file at all."""

    def __str__(self) -> str:
        files = f"Landlock (ABI {self.landlock}): files of the standard library" if self.landlock else "no files"
        return f"seccomp: computing only; {files}"


class CodePool:
    """Judges, ready to work. To be closed, or used as a context.

    Raises:
        InfrastructureError: this machine cannot confine answers; the message says what is missing.
    """

    def __init__(self, limits: CellLimits = DEFAULT_LIMITS, most: int = MOST_JUDGES, use_landlock: bool = True) -> None:
        """Starts a judge for each core that we may use, takes a few tenths of a second.

        Args:
            limits: of each answer.
            most: judges, where there are fewer answers than cores.
            use_landlock: False does without it, as an old kernel.
        """
        count = min(len(os.sched_getaffinity(0)), most)
        self._command = json.dumps({"limits": limits, "landlock": use_landlock})
        self._free: queue.Queue[_Judge] = queue.Queue()
        started = [_Judge(self._command) for _ in range(count)]
        try:
            [self.layers] = {judge.layers() for judge in started}
        except InfrastructureError:
            for judge in started:
                judge.close()
            raise
        for judge in started:
            self._free.put(judge)
        self._threads = ThreadPoolExecutor(count)

    def judge(self, cases: Sequence[CodeCase]) -> list[Outcome]:
        """One outcome for each case, in order."""
        return list(self._threads.map(self._judge, cases))

    def _judge(self, case: CodeCase) -> Outcome:
        judge = self._free.get()
        try:
            for _ in range(2):  # a judge that dies may have been the victim of somebody else's hunger for memory
                if (why := judge.ask(case)) is not None:
                    return Outcome(not why, why)
                judge.close()
                judge = _Judge(self._command)
                judge.layers()
            return Outcome(False, "the test did not come to an end")
        finally:
            self._free.put(judge)

    def close(self) -> None:
        self._threads.shutdown()
        while not self._free.empty():
            self._free.get().close()

    def __enter__(self) -> "CodePool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Judge:
    """A judge's process, seen from the pool."""

    def __init__(self, settings: str) -> None:
        root = str(Path(a2rl.__file__).parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", START, root, settings],
            cwd="/",
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the pipeline alone
        )

    def layers(self) -> Layers:
        """What it says when it is ready."""
        said = self._line()
        if said is None or "error" in said:
            problem = said["error"] if said else "its process ended"
            raise InfrastructureError(
                f"code answers cannot be run here: {problem}; it takes Linux with seccomp on x86_64 or aarch64"
            )
        return Layers(said["landlock"])

    def ask(self, case: CodeCase) -> str | None:
        """Why the answer fails, empty if it passes; None if the judge died over it."""
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
