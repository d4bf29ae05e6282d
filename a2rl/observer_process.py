"""The observer of an attempt, as seen from the stage: started, started again when it dies, never waited for long."""

import subprocess
import threading
import time
from collections.abc import Iterable
from types import TracebackType

from a2rl.background import note, pipeline_log
from a2rl.errors import InfrastructureError
from a2rl.keys import tell
from a2rl.observer import ANSWERED, QUOTA
from a2rl.process import child_environment, module_command
from a2rl.run import RunDir
from a2rl.settings import Settings

MAX_RESTARTS = 5
LAST_LOOK_S = 30.0
"""For the last look, when the agent is gone."""


class Observer:
    """Owns the observer's process.

    Args:
        supervisor: process id of the agent's.
    """

    def __init__(self, run: RunDir, settings: Settings, attempt: int, supervisor: int) -> None:
        self._run = run
        self._settings = settings
        self._arguments = ("watch", str(run.root), str(attempt), str(supervisor), str(time.time_ns()))
        self._heard: set[str] = set()
        self._starts = 0
        self._process = self._start()

    @property
    def has_heard_an_answer(self) -> bool:
        """Whether the agent has answered all that it was told."""
        return ANSWERED in self._heard

    @property
    def quota_is_spent(self) -> bool:
        """Whether the agent has passed its quota, or has made it impossible to tell."""
        return QUOTA in self._heard or (self.is_given_up and self._has_quota)

    @property
    def is_given_up(self) -> bool:
        """Whether nothing is written down of the attempt any more."""
        return self._starts > MAX_RESTARTS and self._is_dead

    def keep_alive(self) -> None:
        """Starts the observer again if it has died, a few times; to be called often."""
        if self._is_dead and not self.is_given_up:
            self._note("it has died")
            self._process = self._start()

    def __enter__(self) -> "Observer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(LAST_LOOK_S)
        except subprocess.TimeoutExpired:
            self._note(f"its last look took more than {LAST_LOOK_S:.0f} s")
            self._process.kill()
            self._process.wait()

    @property
    def _is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def _has_quota(self) -> bool:
        spec = self._run.spec
        return (spec.max_tokens, spec.max_cost_usd) != (None, None)

    def _start(self) -> "subprocess.Popen[str] | None":
        self._starts += 1
        try:
            with (self._run.logs / "observer.log").open("ab") as log:
                process = subprocess.Popen(
                    module_command("a2rl.observer", *self._arguments),
                    cwd=self._settings.root,
                    env=child_environment(self._settings),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
        except OSError as error:
            self._note(f"it cannot be started: {error}")
            return None
        tell(process, {})
        threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()
        return process

    def _listen(self, words: Iterable[str]) -> None:
        for word in words:
            self._heard.add(word.strip())

    def _note(self, problem: str) -> None:
        note(pipeline_log(self._run), "the observer", InfrastructureError(problem))
