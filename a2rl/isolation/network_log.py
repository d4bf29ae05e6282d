"""A line of JSON for each connection of an agent, allowed or not; of a flood the first lines, and how many came."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from a2rl.printable import printable_json
from a2rl.secrets import scrub

LINES_PER_S, MAX_LINES = 20, 5_000
"""Of each kind: a flood of one hides no other."""
MAX_ADDRESS = 256
"""Characters of an address; with the few kinds that there are, the log stays below 30 MB whatever an agent does."""


class _Kind(NamedTuple):
    """What was written of a kind of line."""

    second: int = 0
    in_second: int = 0
    lines: int = 0
    left_out: int = 0


class NetworkLog:
    """A file out of the agent's reach. Control characters of what the agent named are escaped."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str, bool], _Kind] = {}
        """By call, family and whether it was allowed, all of them words of ours: there are no more than a dozen."""

    def write(self, call: str, family: str, address: str, port: int | None, allowed: bool) -> None:
        """Writes or counts it. That the disk is full is no reason to stop the agent's work."""
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
                if kind.left_out & kind.left_out - 1 == 0:  # 1, 2, 4, 8: as few lines as there may ever be
                    rest = {"address": "", "port": None, "allowed": allowed, "left_out": kind.left_out}
                    self._append({**line, **rest})
            self._kinds[call, family, allowed] = kind

    def _append(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._file, (scrub(printable_json(line)) + "\n").encode())
