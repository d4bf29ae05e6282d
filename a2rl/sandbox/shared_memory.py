"""Cleans up /dev/shm if an agent shares it with other programs: files that it leaves are removed and reported.

    memory = SharedMemory.before(user, shared=True)
    ... the agent runs and ends ...
    left = memory.sweep()

Contract: it removes regular files that belong to the agent's user, did not exist before, and are not in use. If the
agent runs as the pipeline's user, it also removes files that other programs of this user created in the meantime and
closed, because nothing distinguishes them from the agent's. A supervisor inside a Landlock scope sees what programs
outside of it have mapped, but not what they only have open, and removes that, too. Standard library only: the
supervisor imports this module.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.core.printable import printable
from a2rl.core.secrets import scrub

PLACE = Path("/dev/shm")


class RemovedFile(NamedTuple):
    """A file that was removed."""

    name: str
    """The name, made printable."""
    size: int


class SharedMemory(NamedTuple):
    """The files that existed before an agent started."""

    user: int
    known: frozenset[int]
    """Inodes."""
    shared: bool

    @classmethod
    def before(cls, user: int, shared: bool, place: Path = PLACE) -> "SharedMemory":
        """Records the existing files.

        Args:
            user: The agent's user.
            shared: Whether the agent uses the machine's /dev/shm; otherwise, there is nothing to do.
            place: The folder.
        """
        return cls(user, frozenset(found for _, found, _ in _files(place, user)) if shared else frozenset(), shared)

    def sweep(self, place: Path = PLACE) -> list[RemovedFile]:
        """Removes the files that the agent left; returns them."""
        if not self.shared:
            return []
        candidates = [(name, found, size) for name, found, size in _files(place, self.user) if found not in self.known]
        used, left = _in_use(place) if candidates else set(), []
        for name, found, size in candidates:
            if found not in used:
                with contextlib.suppress(OSError):
                    (place / name).unlink()
                    left.append(RemovedFile(ascii(name)[1:-1], size))
        return left


def log_removed_files(left: list[RemovedFile], log: Path) -> None:
    """Writes a line for each removed file to the agent's log."""
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


def _in_use(place: Path) -> set[int]:
    """Returns the inodes of files that processes have open or mapped there, as far as they can be inspected."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        device = place.stat().st_dev
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
