"""/dev/shm where agents share the machine's: what one leaves there is removed when it has ended, and reported.

    memory = SharedMemory.before(user, shared=True)
    ... the agent runs and ends ...
    left = memory.sweep()

Contract: removed are regular files that belong to the agent's user, were not there before, and are in use by nobody.
Where that user is the pipeline's own, a file that another of the user's programs made meanwhile, and has closed, cannot
be told from the agent's. Only the standard library is imported.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.printable import printable
from a2rl.secrets import scrub

PLACE = Path("/dev/shm")


class Left(NamedTuple):
    """A file that was removed."""

    name: str
    """Printable, whatever it was called."""
    size: int


class SharedMemory(NamedTuple):
    """What was there before an agent started."""

    user: int
    known: frozenset[int]
    """Numbers of files."""
    shared: bool

    @classmethod
    def before(cls, user: int, shared: bool, place: Path = PLACE) -> "SharedMemory":
        """Args:
        user: the agent's.
        shared: whether the agent has the machine's; else there is nothing to do.
        place: where it is.
        """
        return cls(user, frozenset(found for _, found, _ in _files(place, user)) if shared else frozenset(), shared)

    def sweep(self, place: Path = PLACE) -> list[Left]:
        """Removes what the agent left, and says what that was."""
        if not self.shared:
            return []
        candidates = [(name, found, size) for name, found, size in _files(place, self.user) if found not in self.known]
        used, left = _in_use() if candidates else set(), []
        for name, found, size in candidates:
            if found not in used:
                with contextlib.suppress(OSError):
                    (place / name).unlink()
                    left.append(Left(ascii(name)[1:-1], size))
        return left


def report(left: list[Left], log: Path) -> None:
    """A line for each in the agent's log."""
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        for name, size in left[:100]:
            file.write(f"[a2rl: left in /dev/shm and removed: {printable(scrub(name))}, {size} bytes]\n")


def _files(place: Path, user: int) -> Iterator[tuple[str, int, int]]:
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_uid == user:
                    yield entry.name, status.st_ino, status.st_size


def _in_use() -> set[int]:
    """Numbers of the files that processes have open or mapped there, as far as they can be looked into."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        device = PLACE.stat().st_dev
        for name in os.listdir("/proc"):  # noqa: PTH208 - names alone
            if name.isdigit():
                found.update(_files_of(name, device))
    return found


def _files_of(pid: str, device: int) -> Iterator[int]:
    mark = f"{os.major(device):02x}:{os.minor(device):02x}".encode()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:  # noqa: PTH123
        for line in maps:
            fields = line.split(maxsplit=5)
            if fields[3] == mark:
                yield int(fields[4])
    with contextlib.suppress(OSError):
        for each in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{each}")  # noqa: PTH116
                if status.st_dev == device:
                    yield status.st_ino
