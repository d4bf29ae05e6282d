"""Locks between processes of this machine, with a notice to the user while waiting and a timeout.

with file_lock(folder / ".lock", "another run grades this baseline", timeout_s=3600):
    ...

The kernel releases a lock when its holder ends, however it ends. Lock files are never removed: removing one would
separate processes that wait for the old file from those that open a new one. The package filelock is not used, because
its locks cannot be shared, and its waits can neither be cancelled by the user nor say what they wait for.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import machine_failure
from a2rl.core.processes import check_stop

POLL_INTERVAL_S = 0.1
FIRST_NOTICE_S = 2.0
NOTICE_INTERVAL_S = 60.0


@contextmanager
def file_lock(path: Path, meanwhile: str, timeout_s: float, shared: bool = False) -> Iterator[None]:
    """Holds a lock within the context, after waiting for the other holders.

    Args:
        path: The lock file; it is created if necessary.
        meanwhile: What the other holder is doing, for the notice to the user.
        timeout_s: How long to wait.
        shared: Whether several shared holders may have the lock at once.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: The lock was not released in time, or the file cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise machine_failure(f"lock {path}", error) from error
    try:
        _wait(lock, path, meanwhile, timeout_s, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _wait(lock: int, path: Path, meanwhile: str, timeout_s: float, kind: int) -> None:
    started = time.monotonic()
    next_word = started + FIRST_NOTICE_S
    while not _taken(lock, kind):
        check_stop()
        now = time.monotonic()
        if now - started > timeout_s:
            raise InfrastructureError(
                f"{meanwhile}, for more than {timeout_s:.0f} s: end that process (it holds {path}), or try again later"
            )
        if now >= next_word:
            sys.stderr.write(f"waiting: {meanwhile} ({now - started:.0f} s)\n")
            next_word = now + NOTICE_INTERVAL_S
        time.sleep(POLL_INTERVAL_S)


def _taken(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
