"""Owns the observer's process for the `execute` stage: starts it, restarts it when it dies, and ends it in time."""

import threading
import time
from collections.abc import Iterable
from types import TracebackType

from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import Child
from a2rl.core.settings import Settings
from a2rl.execution.observer import ANSWERED
from a2rl.llm.keys import keys_message
from a2rl.run.directory import RunDir, pipeline_log

OBSERVER = "a2rl.execution.observer"
MAX_RESTARTS = 5
LAST_LOOK_TIMEOUT_S = 30.0
"""The time for the observer to examine the workspace for the last time, after the agent has ended."""


class Observer:
    """Owns the observer's process.

    Args:
        run: The run.
        settings: The settings of this checkout.
        attempt: The number of the attempt.
        supervisor: Process id of the agent's supervisor.
    """

    def __init__(self, run: RunDir, settings: Settings, attempt: int, supervisor: int) -> None:
        self._run = run
        self._settings = settings
        self._arguments = ("watch", str(run.root), str(attempt), str(supervisor), str(time.time_ns()))
        self._reported: set[str] = set()
        self._starts = 0
        self._process = self._start()

    @property
    def has_heard_an_answer(self) -> bool:
        """Whether the agent has answered the messages sent to it."""
        return ANSWERED in self._reported

    @property
    def is_given_up(self) -> bool:
        """Whether the observer has died too often, so that the attempt is no longer recorded."""
        return self._starts > MAX_RESTARTS and self._is_dead

    def keep_alive(self) -> None:
        """Restarts the observer if it has died, up to `MAX_RESTARTS` times; call it often."""
        if self._is_dead and not self.is_given_up:
            self._note("it has died")
            self._process = self._start()

    def __enter__(self) -> "Observer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and not self._process.end(LAST_LOOK_TIMEOUT_S):
            self._note(f"its last look took more than {LAST_LOOK_TIMEOUT_S:.0f} s")

    @property
    def _is_dead(self) -> bool:
        return self._process is None or not self._process.is_alive

    def _start(self) -> Child | None:
        self._starts += 1
        log = self._run.logs / "observer.log"
        try:
            child = Child.of_module(OBSERVER, *self._arguments, settings=self._settings, log=log, answers=True)
        except OSError as error:
            self._note(f"it cannot be started: {error}")
            return None
        child.tell(keys_message({}))
        threading.Thread(target=self._listen, args=(child.answers,), daemon=True).start()
        return child

    def _listen(self, words: Iterable[bytes]) -> None:
        for word in words:
            self._reported.add(word.decode("utf-8", "replace").strip())

    def _note(self, problem: str) -> None:
        log_failure(pipeline_log(self._run), "the observer", InfrastructureError(problem))
