"""The storage that an agent uses: how much of the disk it takes, and what it leaves in /dev/shm.

The disk is measured, because quotas need root and a file system that supports them. Only folders are opened, links are
not followed, and no nesting or naming makes it raise or run for ever. Removed files that are still open count as well
(`removed_bytes`).

The walk uses paths, not descriptors. a2rl/linux/untrusted_folder.py uses descriptors, but takes 1.5 times as long
(0.10 s instead of 0.07 s for 20,000 files) and reports neither blocks nor inodes. Paths are safe here, because only the
sizes of files are read: an agent that replaces a folder by a link during the walk changes only its own measured usage.

If an agent with a user of its own shares /dev/shm with other programs, `remove_left_files` removes what it leaves
there. Without such a user it stays: nothing distinguishes it from files of other programs of the same user.
Standard library only: the supervisor imports this module.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.linux.landlock import LIBC
from a2rl.linux.process_tree import living_thread
from a2rl.linux.resources import free_space

FULL = "the disk is full"
MIN_FREE_BYTES = 256 << 20
MIN_FREE_FILES = 2_000
"""The free space and inodes that the pipeline needs to continue recording the run."""
MEASURE_TIMEOUT_S = 5.0
PAUSE_FACTOR = 50
"""The pause after a measurement, in multiples of the time that it took, unless the disk fills up."""
PLACE = Path("/dev/shm")
MAX_NOTED = 100
"""Left files that are named in the agent's log."""


SHARED_MEMORY = (b"/dev/", b"/memfd:", b"/SYSV", b"/anon_hugepage", b"/[aio]", b"/drm mm object")
"""What the kernel calls mapped files that are on no disk; they count as removed."""
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine, -1)
_KCMP_FILES = 2


class DiskWatch:
    """Watches an agent's use of the disk; `check` is called about once a second.

    If the agent's files cannot all be measured, it counts what the disk has lost since the agent started. Otherwise, a
    folder without permissions, a path that is too long or too many files would hide what the agent uses.
    """

    def __init__(self, folders: Iterable[str], limit: int, can_hide: bool = True) -> None:
        """Starts to watch.

        Args:
            folders: The folders that the agent can write to; the first one determines the disk.
            limit: The limit in bytes; 0: none.
            can_hide: Whether a process that nobody can look at was meant to hide what it has open. Without a sandbox,
                some programs do so by themselves.
        """
        self._folders, self._limit, self._can_hide = list(folders), limit, can_hide
        self._free, self._free_files = free_space(Path(self._folders[0]))
        earlier = bytes_below(self._folders) if limit else Measured(0, is_complete=True)
        self._new_files = self._free_files // 2
        self._most_files = earlier.files + self._new_files
        self._free_at_start, self._used_at_start = self._free, earlier.used
        self._has_room, self._has_files = self._free > 2 * MIN_FREE_BYTES, self._free_files > 2 * MIN_FREE_FILES
        self._next = 0.0

    def check(self, processes: Iterable[int]) -> str:
        """Returns why the agent has to be ended, or an empty text."""
        try:
            free, free_files = free_space(Path(self._folders[0]))
        except OSError:
            return ""
        if (self._has_room and free < MIN_FREE_BYTES) or (self._has_files and free_files < MIN_FREE_FILES):
            return FULL
        now = time.monotonic()
        many = self._has_files and self._free_files - free_files > self._new_files // 8
        if not self._limit or (now < self._next and self._free - free < self._limit // 8 and not many):
            return ""
        below, removed = bytes_below(self._folders), removed_bytes(processes)
        self._free, self._free_files = free, free_files
        self._next = time.monotonic() + PAUSE_FACTOR * (time.monotonic() - now)
        if self._has_files and below.files > self._most_files:
            return f"it has {below.files:,} files, more than {self._most_files:,}"
        used = below.used + removed.used
        if not (below.is_complete and (removed.is_complete or not self._can_hide)):
            used = max(used, self._used_at_start + self._free_at_start - free)
        if used <= self._limit:
            return ""
        return f"its files take {used / 2**30:.1f} GiB, more than {self._limit / 2**30:.1f}"


class Measured(NamedTuple):
    """The bytes that files take on the disk."""

    used: int
    is_complete: bool
    """Whether all files were seen."""
    files: int = 0
    """How many were seen, with folders."""


def bytes_below(folders: Iterable[str]) -> Measured:
    """Measures all files in folders, counting each file once, within MEASURE_TIMEOUT_S."""
    queue, used, end, is_complete = list(folders), 0, time.monotonic() + MEASURE_TIMEOUT_S, True
    files = 0
    seen: set[tuple[int, int]] = set()
    while queue and time.monotonic() < end:
        path = queue.pop()
        try:
            for name, status in _entries(path):
                files += 1
                if stat.S_ISDIR(status.st_mode):
                    queue.append(os.path.join(path, name))  # noqa: PTH118 - names of any kind
                elif status.st_nlink == 1 or (status.st_dev, status.st_ino) not in seen:
                    used += 512 * status.st_blocks
                    if status.st_nlink > 1:
                        seen.add((status.st_dev, status.st_ino))
        except (FileNotFoundError, NotADirectoryError):
            pass  # it was removed or replaced in the meantime
        except OSError:
            is_complete = False
    return Measured(used, is_complete and not queue, files)


def _entries(path: str) -> Iterator[tuple[str, os.stat_result]]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was removed in the meantime
                    yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(folder)


def removed_bytes(processes: Iterable[int]) -> Measured:
    """Measures removed files that these processes still have open or mapped, within MEASURE_TIMEOUT_S.

    Files may be missing that are on their way through a socket, or open in a process that hides what it has open: one
    whose program may be executed but not read.
    """
    used, seen, end = 0, set[tuple[int, int]](), time.monotonic() + MEASURE_TIMEOUT_S
    is_complete = True
    for task, has_maps in (each for pid in processes for each in _tasks(pid)):
        try:
            for file in chain(_opened(task), _removed_maps(task) if has_maps else ()):
                if time.monotonic() > end:  # an agent can open the same file millions of times
                    return Measured(used, is_complete=False)
                status = _status(file)
                if status is None:
                    continue
                key = (status.st_dev, status.st_ino)
                if stat.S_ISSOCK(status.st_mode):
                    is_complete = is_complete and not _holds_files(file)
                elif stat.S_ISREG(status.st_mode) and not status.st_nlink and key not in seen:
                    seen.add(key)
                    used += 512 * status.st_blocks
        except PermissionError:  # only root can look at a mapping; nobody without privileges at a task that ends
            is_complete = is_complete and living_thread(task) != task
    return Measured(used, is_complete)


def _tasks(pid: int) -> Iterator[tuple[int, bool]]:
    """Yields the threads of a process, and whether their mappings have to be looked at.

    Those that share the open files of the first are left out. It may end before the others: then only they say what is
    open and mapped.
    """
    with contextlib.suppress(OSError):
        tasks = [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - names alone
        is_first_alive = living_thread(pid) == pid
        for task in tasks:
            if task == pid or not is_first_alive:
                yield task, True
            elif LIBC.syscall(_KCMP, pid, task, _KCMP_FILES, 0, 0):  # open files of its own, or nobody knows
                yield task, False


def _status(file: str) -> os.stat_result | None:
    """Returns the status of a file; None if it has been closed in the meantime."""
    try:
        return os.stat(file)  # noqa: PTH116 - called thousands of times
    except PermissionError:
        raise
    except OSError:
        return None


def _opened(task: int) -> Iterator[str]:
    """Yields the paths of what a thread has open."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), os.scandir(f"/proc/{task}/fd") as files:
        for file in files:
            yield file.path


def _holds_files(socket: str) -> bool:
    """Whether files have been sent to this socket, which nobody has received (Linux 5.8)."""
    try:
        with open(socket.replace("/fd/", "/fdinfo/"), "rb") as file:  # noqa: PTH123 - as above
            _, _, count = file.read().partition(b"scm_fds:")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return bool(count) and int(count.split()[0]) > 0


def _removed_maps(pid: int) -> Iterator[str]:
    """Yields the paths of removed files that a process has mapped: it may have closed them."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/maps", "rb") as lines:  # noqa: PTH123 - as above
        for line in lines:
            place, _, _, _, _, *name = line.split(maxsplit=5)
            if name and name[0].rstrip().endswith(b" (deleted)") and not name[0].startswith(SHARED_MEMORY):
                # Here, the kernel writes small addresses with zeros in front; there, it takes none.
                yield f"/proc/{pid}/map_files/{'-'.join(f'{int(end, 16):x}' for end in place.split(b'-'))}"


def remove_left_files(user: int, log: Path, place: Path = PLACE) -> None:
    """Removes the files in /dev/shm of an agent that has ended, and notes them in its log.

    Args:
        user: The agent's own user. All of its regular files are the agent's, because nobody else has this user.
    """
    removed = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in list(entries):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_uid == user:
                    os.unlink(entry)  # noqa: PTH108 - names of any kind
                    removed.append((entry.name, status.st_size))
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        for name, size in removed[:MAX_NOTED]:
            file.write(f"[a2rl: left in /dev/shm and removed: {printable(scrub(name))}, {size} bytes]\n")
