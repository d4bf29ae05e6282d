"""The lock of a run: at most one process works on a run at a time.

It is a kernel lock on an open file. It is released when the process ends for any reason, and a copy of the directory is
not locked. The content of the file is only for people to read.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.core.errors import UsageError
from a2rl.core.locks import FileLock
from a2rl.run.directory import RunDir

LOCK = "owner.lock"
MAX_BYTES = 4096


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
        lock.release()


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
            lock.release()


_RESERVED: dict[Path, FileLock] = {}
"""The locks that wait for the work to begin, by the folder of the run."""


def _taken(run: RunDir) -> FileLock:
    lock = FileLock(run.root / LOCK)
    if not lock.take():
        owner = _owner(lock)
        lock.release()
        raise UsageError(
            f"run {run.id} is in use by {owner}: wait until it has ended, or stop it, then `a2rl resume {run.id}`"
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    lock.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
    return lock


def _owner(lock: FileLock) -> str:
    try:
        owner = json.loads(lock.read(MAX_BYTES))
        return f"process {int(owner['pid'])} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
