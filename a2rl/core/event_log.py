"""A log of JSON lines with a maximum size, so that an agent that causes many lines cannot fill the disk."""

import time
from pathlib import Path
from traceback import format_exception
from typing import Any

from a2rl.core.errors import A2rlError
from a2rl.core.printable import printable_json
from a2rl.core.secrets import scrub_bytes

MAX_BYTES = 64 << 20
ROOM = 1 << 20
"""A log counts as full when less than this is left, which is room for what is under way at that moment."""
MAX_TRACEBACK = 8000
"""The number of characters that are kept of a traceback, from its end."""


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
        """Appends a line, if there is room for it."""
        line = scrub_bytes(f"{printable_json({'t': round(time.time(), 3), **fields})}\n".encode())
        if self._bytes + len(line) <= self._max_bytes:
            with self.path.open("ab", buffering=0) as file:
                file.write(line)


def log_failure(log: EventLog, what: str, error: BaseException) -> None:
    """Logs that some work has failed, if the log can be written; an unexpected error is logged with its traceback."""
    trace = {} if isinstance(error, A2rlError) else {"traceback": "".join(format_exception(error))[-MAX_TRACEBACK:]}
    try:
        log.write(what=what, failed=f"{type(error).__name__}: {error}"[:1000], **trace)
    except OSError:
        return  # the disk is full, which the run itself reports
