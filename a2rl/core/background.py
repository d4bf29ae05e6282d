"""Calls functions repeatedly in threads, without disturbing the main work.

No library: this needs one thread and one event, whereas schedulers such as APScheduler bring job stores and thread
pools.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from a2rl.core.event_log import EventLog, log_failure

JOIN_S = 5.0


class PeriodicThread:
    """Calls a function repeatedly in a thread until the context is left.

    A call that does not return is abandoned with its thread: it delays the exit by a few seconds at most.

    Args:
        name: The name of the thread.
        work: The function to call; an exception ends the thread.
        pause_s: Returns how many seconds to wait before the next call.
    """

    def __init__(self, name: str, work: Callable[[], object], pause_s: Callable[[], float]) -> None:
        self._work = work
        self._pause_s = pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(JOIN_S)

    def _repeat(self) -> None:
        while not self._over.wait(self._pause_s()):
            self._work()


class Background(PeriodicThread):
    """A periodic thread whose failures are logged, so that none of them ends the run.

    Args:
        name: Names the work in the log.
        work: The function to call.
        pause_s: Returns how many seconds to wait before the next call.
        log: Gets one line for each failure that differs from the previous one.
    """

    def __init__(self, name: str, work: Callable[[], object], pause_s: Callable[[], float], log: EventLog) -> None:
        super().__init__(name, lambda: self._try(work), pause_s)
        self._name = name
        self._log = log
        self.failure: Exception | None = None
        """The error of the last call, if it failed."""

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the work is optional: no failure of it may end the run
            if str(error) != str(self.failure):
                log_failure(self._log, self._name, error)
            self.failure = error
        else:
            self.failure = None
