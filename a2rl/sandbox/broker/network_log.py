"""Logs the connections of an agent, allowed or not: one line of JSON for each.

If there are too many, only the first ones are logged, and the number of the others.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from a2rl.core.printable import printable_json
from a2rl.core.secrets import scrub

LINES_PER_S, MAX_LINES = 20, 5_000
"""Limits for each kind of line. They are separate, so that many lines of one kind cannot hide the others."""
MAX_ADDRESS = 256
"""Maximum number of characters of an address. As there are few kinds of lines, the log stays below 30 MB."""


class _Kind(NamedTuple):
    """How many lines of a kind were written or left out."""

    second: int = 0
    in_second: int = 0
    lines: int = 0
    left_out: int = 0


class NetworkLog:
    """A log file that the agent cannot access. Control characters in addresses are escaped."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str, bool], _Kind] = {}
        """Counts by call, address family and whether it was allowed. The agent cannot choose these words, so there are
        at most a dozen kinds."""

    def write(self, call: str, family: str, address: str, port: int | None, allowed: bool) -> None:
        """Logs a connection, or only counts it if there are too many.

        Write errors such as a full disk are ignored, because they must not stop the agent.
        """
        now = time.time()
        with self._lock:
            kind = self._kinds.get((call, family, allowed), _Kind())
            if kind.second != int(now):
                kind = kind._replace(second=int(now), in_second=0)
            line = {"t": round(now, 3), "call": call, "family": family}
            if kind.in_second < LINES_PER_S and kind.lines < MAX_LINES:
                kind = kind._replace(in_second=kind.in_second + 1, lines=kind.lines + 1)
                self._append({**line, "address": address[:MAX_ADDRESS], "port": port, "allowed": allowed})
            else:
                kind = kind._replace(left_out=kind.left_out + 1)
                if kind.left_out & kind.left_out - 1 == 0:  # only at 1, 2, 4, 8, ..., so that there are few such lines
                    rest = {"address": "", "port": None, "allowed": allowed, "left_out": kind.left_out}
                    self._append({**line, **rest})
            self._kinds[call, family, allowed] = kind

    def _append(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._file, (scrub(printable_json(line)) + "\n").encode())
