"""How much of the disk an agent takes: measured, since a quota takes root and a file system that has them.

Contract: nothing is opened but folders, no link is followed, and no way of nesting or naming makes it raise or go on
for ever. Removed files that are still open count as well (`removed_bytes`). Only the standard library is imported.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from a2rl.isolation.resources import free_bytes

FLOOR = 256 << 20
"""What must stay free, or nobody can write down how the run goes on."""
MEASURE_S = 5.0
REST = 50
"""At least so many times as long as a measurement took, there is none, unless the disk fills up."""


class DiskWatch:
    """What an agent takes of the disk; `problem` is called about once a second."""

    def __init__(self, folders: Iterable[str], limit: int) -> None:
        """Args:
        folders: that it can write to; the first tells the disk.
        limit: in bytes; 0: none.
        """
        self._folders, self._limit = list(folders), limit
        self._free = free_bytes(Path(self._folders[0]))
        self._has_room = self._free > 2 * FLOOR
        self._next = 0.0

    def problem(self, processes: Iterable[int]) -> str:
        """Why the agent has to be ended; nothing if it has not."""
        try:
            free = free_bytes(Path(self._folders[0]))
        except OSError:
            return ""
        if self._has_room and free < FLOOR:
            return "the disk is full"
        now = time.monotonic()
        if not self._limit or (now < self._next and self._free - free < self._limit // 8):
            return ""
        used = bytes_below(self._folders) + removed_bytes(processes)
        self._free, self._next = free, time.monotonic() + REST * (time.monotonic() - now)
        return (
            f"its files take {used / 2**30:.1f} GiB, more than {self._limit / 2**30:.1f}" if used > self._limit else ""
        )


def bytes_below(folders: Iterable[str]) -> int:
    """What the files in them take on the disk, each file once; as far as it can be counted in MEASURE_S."""
    queue, used, end = list(folders), 0, time.monotonic() + MEASURE_S
    seen: set[tuple[int, int]] = set()
    while queue and time.monotonic() < end:
        path = queue.pop()
        for name, status in _entries(path):
            if stat.S_ISDIR(status.st_mode):
                queue.append(os.path.join(path, name))  # noqa: PTH118 - names of any kind
            elif status.st_nlink == 1 or (status.st_dev, status.st_ino) not in seen:
                used += 512 * status.st_blocks
                seen |= {(status.st_dev, status.st_ino)} if status.st_nlink > 1 else set()
    return used


def _entries(path: str) -> Iterator[tuple[str, os.stat_result]]:
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # gone meanwhile
                        yield entry.name, entry.stat(follow_symlinks=False)
        finally:
            os.close(folder)


def removed_bytes(processes: Iterable[int]) -> int:
    """What files take that have no name any more, and that these processes have open."""
    used, seen = 0, set[tuple[int, int]]()
    for pid in processes:
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - names alone
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116 - thousands of times
                    key = (status.st_dev, status.st_ino)
                    if stat.S_ISREG(status.st_mode) and not status.st_nlink and key not in seen:
                        seen.add(key)
                        used += 512 * status.st_blocks
    return used
