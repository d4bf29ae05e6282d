"""A log of JSON lines with a maximum size, so that an agent that causes many lines cannot fill the disk.

And periodic work in threads whose failures go to such a log. No library: it needs one thread and one event, whereas
schedulers such as APScheduler bring job stores and thread pools.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from traceback import format_exception
from typing import Any, Self

from a2rl.core.errors import A2rlError
from a2rl.core.printable import printable_json
from a2rl.core.secrets import scrub_bytes

MAX_BYTES = 64 << 20
ROOM = 1 << 20
"""A log counts as full when less than this is left, which is room for what is under way at that moment."""
MAX_TRACEBACK = 8000
"""The number of characters that are kept of a traceback, from its end."""
JOIN_S = 5.0


class EventLog:
    """Appends one JSON object per line, with the time `t` (Unix time in seconds), up to `max_bytes`.

    Once the file has reached its maximum size, lines are dropped. So whoever limits or checks something by this log
    stops when it `is_full`.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path, self._max_bytes = path, max_bytes

    @property
    def is_full(self) -> bool:
        """Whether the next lines may be dropped; it remains so."""
        return self._bytes > self._max_bytes - ROOM

    @property
    def _bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def write(self, **fields: Any) -> None:
        """Appends a line, if there is room for it.

        Raises:
            OSError: It cannot be written; no part of it remains.
        """
        line = scrub_bytes(f"{printable_json({'t': round(time.time(), 3), **fields})}\n".encode())
        if self._bytes + len(line) <= self._max_bytes:
            with self.path.open("ab", buffering=0) as file:
                append_whole(file, line)


def append_whole(file: FileIO, line: bytes) -> None:
    """Adds a line to an unbuffered file.

    Raises:
        OSError: It cannot be written; no part of it remains.
    """
    if (written := file.write(line)) < len(line):  # the disk is full
        file.truncate(file.tell() - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def log_failure(log: EventLog, what: str, error: BaseException) -> None:
    """Logs that some work has failed, if the log can be written; an unexpected error is logged with its traceback."""
    trace = {} if isinstance(error, A2rlError) else {"traceback": "".join(format_exception(error))[-MAX_TRACEBACK:]}
    try:
        log.write(what=what, failed=f"{type(error).__name__}: {error}"[:1000], **trace)
    except OSError:
        return  # the disk is full, which the run itself reports


class PeriodicThread:
    """Calls a function repeatedly in a thread until the context is left.

    A call that does not return is abandoned with its thread: it delays the exit by a few seconds at most.

    Args:
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

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(JOIN_S)

    def _repeat(self) -> None:
        while not self._over.wait(self._pause_s()):
            self._work()


class Background(PeriodicThread):
    """A periodic thread whose failures are logged, so that none of them ends the run.

    Args:
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
