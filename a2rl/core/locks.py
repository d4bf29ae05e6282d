"""Locks between processes of this machine: kernel locks on open files.

with file_lock(folder / ".lock", "another run grades this baseline", timeout_s=3600):
    ...

The kernel releases a lock when its holder ends, however it ends. Lock files are never removed: removing one would
separate processes that wait for the old file from those that open a new one. The package filelock is not used, because
its locks cannot be shared, and its waits can neither be cancelled by the user nor say what they wait for.
"""

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import machine_failure
from a2rl.core.processes import check_stop

POLL_INTERVAL_S = 0.1
FIRST_NOTICE_S = 2.0
NOTICE_INTERVAL_S = 60.0
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


class FileLock:
    """A lock that this process holds once `take` has returned True, until `release`.

    Children do not inherit it: a process that outlives a killed pipeline must not hold it.

    Args:
        path: The lock file, which is created if necessary. Another user may have created it.
        shared: Whether several shared holders may have the lock at once.
    """

    def __init__(self, path: Path, shared: bool = False) -> None:
        self._path, self._kind = path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._file = -1

    def take(self) -> bool:
        """Takes the lock if nobody else holds it, and returns whether it did.

        Raises:
            InfrastructureError: The file cannot be opened, or its file system does not support locks.
        """
        while True:
            if self._file < 0:
                self._file = self._open()
            if self._file < 0:
                return True  # a reader where nobody has locked anything
            try:
                fcntl.flock(self._file, self._kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:
                self.release()
                if error.errno not in NO_LOCKS:
                    raise machine_failure(f"lock {self._path}", error) from error
                raise InfrastructureError(
                    f"the file system of {self._path} does not support locks ({error.strerror}), so two processes "
                    "could use the same files: move them to a local disk, or mount the network file system with locks"
                ) from error
            if os.fstat(self._file).st_nlink:
                return True
            self.release()  # a program that tidies up has removed it meanwhile

    def release(self) -> None:
        """Gives the lock back, if it is held, and closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def write(self, text: str) -> None:
        """Says in the file who holds the lock. It holds also if that cannot be written, as on a full disk."""
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)

    def read(self, max_bytes: int) -> str:
        """Returns what the holder has written, which anybody may have changed; empty if it cannot be read."""
        with suppress(OSError):
            return os.pread(self._file, max_bytes, 0).decode("utf-8", "replace")
        return ""

    def _open(self) -> int:
        """Returns the open file; -1 for a reader who can neither find the lock file nor make it, because the disk is
        read-only or the folder belongs to another user."""
        flags, is_there = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, False
        try:
            for kind in (os.O_RDWR, os.O_RDONLY):
                try:
                    file = os.open(self._path, kind | flags)
                except OSError as error:
                    if error.errno not in {errno.ENOENT, *NOT_WRITABLE}:
                        raise
                    is_there = error.errno != errno.ENOENT
                    continue
                if stat.S_ISREG(os.fstat(file).st_mode):
                    return file
                os.close(file)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | flags, 0o644)
            os.fchmod(file, 0o644)  # whatever the umask says: without reading it, others could not lock it
        except OSError as error:
            if self._kind == fcntl.LOCK_SH and error.errno in NOT_WRITABLE and not is_there:
                return -1
            raise machine_failure(f"open {self._path}", error) from error
        return file


def is_held(path: Path) -> bool:
    """Returns whether a process of this machine holds a lock of this kind, without touching the lock.

    Without /proc/locks, which says so, a lock counts as held if its file exists. Only inodes are compared, since some
    file systems show another device there.
    """
    try:
        inode = str(path.stat().st_ino)
    except OSError:
        return False
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return True
    fields = [line.split() for line in lines if " FLOCK " in line and " -> " not in line]
    return any(each[-3].rpartition(":")[2] == inode for each in fields)


class Patience:
    """The wait for what other processes hold: the user is told of it, and it has an end.

    Args:
        check: Called at every turn; it raises an error to end the wait, as when the user stops the pipeline.
    """

    def __init__(self, timeout_s: float, check: Callable[[], None] = check_stop) -> None:
        self._timeout_s, self._check = timeout_s, check
        self._began = time.monotonic()
        self._next_notice = self._began + FIRST_NOTICE_S

    def pause(self, meanwhile: str, too_long: str) -> None:
        """Waits for a moment; says on stderr, now and then, what is waited for.

        Raises:
            InterruptedByUserError: The user stopped the pipeline, or whatever else the check raises.
            InfrastructureError: The time is over; the message is `too_long`.
        """
        self._check()
        now = time.monotonic()
        if now - self._began > self._timeout_s:
            raise InfrastructureError(too_long)
        if now >= self._next_notice:
            sys.stderr.write(f"waiting: {meanwhile} ({now - self._began:.0f} s)\n")
            self._next_notice = now + NOTICE_INTERVAL_S
        time.sleep(POLL_INTERVAL_S)


@contextmanager
def file_lock(
    path: Path, meanwhile: str, timeout_s: float, shared: bool = False, heeds_stop: bool = True
) -> Iterator[None]:
    """Holds a lock within the context, after waiting for the other holders.

    Args:
        path: The lock file; it is created if necessary, with its folder.
        meanwhile: What the other holder is doing, for the notice to the user.
        shared: Whether several shared holders may have the lock at once.
        heeds_stop: Whether the wait ends when the user stops the pipeline. What must also be done then waits on.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: The lock was not released in time, or the file cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise machine_failure(f"lock {path}", error) from error
    lock = FileLock(path, shared)
    too_long = f"{meanwhile}, for more than {timeout_s:.0f} s: end that process (it holds {path}), or try again later"
    patience = Patience(timeout_s, check_stop if heeds_stop else lambda: None)
    try:
        while not lock.take():
            patience.pause(meanwhile, too_long)
        yield
    finally:
        lock.release()
