"""`CodePool`: tests many answers at once, with a running tester for each core.

See `a2rl.code_execution` for why its verdicts can be trusted.
"""

import json
import os
import queue
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import a2rl
from a2rl.code_execution.cell import CellLimits
from a2rl.core.errors import InfrastructureError
from a2rl.core.processes import Child

START = "import sys; root, settings = sys.argv[1:]; sys.path.insert(0, root); "
START += "import a2rl.code_execution.tester as tester; sys.path.remove(root); tester.main(settings)"
START_TIMEOUT_S, ANSWER_TIMEOUT_S, END_TIMEOUT_S = 60.0, 30.0, 10.0
"""How long a tester may take to start, to answer beyond the limits of the case itself, and to end."""
MAX_TESTERS = 16
TRIES_ALONE = 2
DEFAULT_LIMITS = CellLimits()
CONTROL = """
import time
def control():
    used = b"x" * {memory}
    while time.process_time() < {cpu_s}:
        pass
    return len(used)
"""
"""A right answer that takes about half of what an answer may take."""


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
    is_sure: bool = True
    """Whether the answer decided this; False: its process or the tester ended, which may be the machine's fault."""


class Layers(NamedTuple):
    """What confines answers on this machine. seccomp always does; without it, nothing is run."""

    landlock: int
    """The Landlock version, with which answers can read the standard library; 0: none, and they can open no files."""

    def __str__(self) -> str:
        files = f"Landlock (ABI {self.landlock}): files of the standard library" if self.landlock else "no files"
        return f"seccomp: computing only; {files}"


class CodePool(AbstractContextManager["CodePool"]):
    """A pool of running testers, which end with the context."""

    def __init__(self, limits: CellLimits = DEFAULT_LIMITS, most: int = MAX_TESTERS, use_landlock: bool = True) -> None:
        """Starts a tester for each available core, in a few tenths of a second.

        Args:
            most: The maximum number of testers, for when there are fewer answers than cores.
            use_landlock: Whether to use Landlock; without it, answers are confined as on an old kernel.

        Raises:
            InfrastructureError: This machine cannot confine answers; the message says what is missing.
        """
        count = min(len(os.sched_getaffinity(0)), most)
        self._limits, self._landlock = limits, use_landlock
        self._free: queue.Queue[_Tester] = queue.Queue()
        started = [self._tester() for _ in range(count)]
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
        """Tests answers; returns one outcome for each case, in order. What is not sure, this machine could not test."""
        outcomes = list(self._threads.map(self._test, cases))
        pairs = zip(cases, outcomes, strict=True)
        return [outcome if outcome.is_sure else self._test_alone(case) for case, outcome in pairs]

    def _test(self, case: CodeCase) -> Outcome:
        tester = self._free.get()
        try:
            return tester.ask(case)
        finally:
            self._free.put(tester)

    def _test_alone(self, case: CodeCase) -> Outcome:
        """Tests an answer while nothing else runs; if it fails again and a control passes, the answer is at fault."""
        limits, memory = self._limits, self._limits.memory // 2
        program = CONTROL.format(memory=memory, cpu_s=min(limits.cpu_s / 2, limits.wall_s / 8))
        control = CodeCase(program, "control", "", f"def check(f):\n    assert f() == {memory}\n")
        for _ in range(TRIES_ALONE):
            with closing(self._tester()) as tester:
                outcome = tester.ask(case)
            with closing(self._tester()) as tester:
                works = tester.ask(control)
            if outcome.is_sure:
                return outcome
            if not works.passed:
                return outcome._replace(why=f"this machine could not test it: {outcome.why}; a control: {works.why}")
        return outcome._replace(is_sure=True)

    def _tester(self) -> "_Tester":
        return _Tester(self._limits, self._landlock)

    def __exit__(self, *_: object) -> None:
        """Ends all testers."""
        self._threads.shutdown()
        while not self._free.empty():
            self._free.get().close()


class _Tester:
    """A tester's process, as seen by the pool. If it has ended, the next case starts another one."""

    def __init__(self, limits: CellLimits, use_landlock: bool) -> None:
        self._settings = json.dumps({"limits": limits, "landlock": use_landlock})
        self._patience_s = limits.wall_s + ANSWER_TIMEOUT_S
        self._is_ready = False
        self._start()

    def _start(self) -> None:
        root = str(Path(a2rl.__file__).parent.parent)
        self._process = Child([sys.executable, "-I", "-S", "-c", START, root, self._settings], {}, "/", answers=True)

    def layers(self) -> Layers:
        """Returns the confinement that it reports when it is ready."""
        said = self._line(START_TIMEOUT_S)
        if said is None or "error" in said:
            problem = said["error"] if said else "its process ended"
            raise InfrastructureError(
                f"code answers cannot be run here: {problem}; this needs Linux with seccomp on x86_64 or aarch64"
            )
        self._is_ready = True
        return Layers(said["landlock"])

    def ask(self, case: CodeCase) -> Outcome:
        """Tests an answer."""
        try:
            if not self._process.is_alive:
                self.close()
                self._start()
            if not self._is_ready:
                self.layers()
            self._process.tell(json.dumps(case.__dict__))
            said = self._line(self._patience_s)
        except (OSError, InfrastructureError) as error:  # OSError: it has died, or the machine starts no process
            self.close()
            return Outcome(False, str(error), is_sure=False)
        if said is None:
            used_up = self.close() == -signal.SIGPROF  # the test computed too much with what it was given
            return Outcome(False, "the test did not come to an end", is_sure=used_up)
        return Outcome(not said["why"], said["why"], said["is_sure"])

    def _line(self, timeout_s: float) -> dict[str, Any] | None:
        """Returns what it says next; None if it has ended or says nothing in time."""
        if not connection.wait([self._process.answers.fileno()], timeout_s):
            return None
        line = self._process.answers.readline()
        return dict(json.loads(line)) if line else None

    def close(self) -> int:
        """Ends it with its cell, and waits for its end; returns its exit status."""
        self._is_ready = False
        return self._process.end_group(END_TIMEOUT_S)
