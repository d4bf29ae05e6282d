"""The lock of a run: at most one process works on a run at a time.

It is a kernel lock on an open file. It is released when the process ends for any reason, and a copy of the directory is
not locked. The content of the file is only for people to read.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.run.directory import RunDir

LOCK = "owner.lock"
MAX_BYTES = 4096
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


@contextmanager
def owned(run: RunDir) -> Iterator[None]:
    """Locks a run for this process until the context is left.

    Raises:
        UsageError: Another process owns it (the message says which), or there is no such run.
        InfrastructureError: The file system does not support locks, or cannot be written.
    """
    run.load_spec()  # raises UsageError if there is no such run
    with locked(run):
        yield


@contextmanager
def locked(run: RunDir) -> Iterator[None]:
    """Locks the folder of a run, which must exist but may be empty: a copy may be restored into it."""
    lock = _RESERVED.pop(run.root.resolve(), None)
    lock = _taken(run) if lock is None else lock
    try:
        yield
    finally:
        os.close(lock)  # releases the lock; the file is kept, because removing it would allow two owners


@contextmanager
def reserved(run: RunDir) -> Iterator[None]:
    """Locks a run before the work on it begins, so that another process is refused at once.

    The first `owned` or `locked` of this process takes the lock over; otherwise, leaving the context releases it.
    Raises the same errors as `locked`.
    """
    place, lock = run.root.resolve(), _taken(run)
    _RESERVED[place] = lock
    try:
        yield
    finally:
        if _RESERVED.pop(place, None) is not None:
            os.close(lock)


_RESERVED: dict[Path, int] = {}
"""The locks that wait for the work to begin, by the folder of the run."""


def _taken(run: RunDir) -> int:
    lock = _open(run)
    try:
        _take(lock, run)
        _sign(lock)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _open(run: RunDir) -> int:
    try:
        # Children do not inherit the lock, because processes that outlive a killed pipeline must not own the run.
        return os.open(run.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InfrastructureError(
            f"cannot open {run.root / LOCK}: {error.strerror}; fix that and resume the run"
        ) from error


def _take(lock: int, run: RunDir) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"run {run.id} is in use by {_owner(lock)}: wait until it has ended, or stop it, "
            f"then `a2rl resume {run.id}`"
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise InfrastructureError(f"cannot lock run {run.id}: {error.strerror}; resume the run") from error
        raise InfrastructureError(
            f"the file system of {run.root} does not support locks ({error.strerror}), so two processes could damage "
            "the run: move the checkout to a local disk, or mount the network file system with locks"
        ) from error


def _sign(lock: int) -> None:
    """Writes into the lock file which process owns the run."""
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, text.encode(), 0)
    except OSError:
        return  # the lock is effective even if the disk is full and this cannot be written


def _owner(lock: int) -> str:
    try:
        owner = json.loads(os.pread(lock, MAX_BYTES, 0))
        return f"process {int(owner['pid'])} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
