"""Locks between processes of this machine, on files: waited for with a word to the user, and not without an end.

with held(folder / ".lock", "another run grades this baseline", timeout_s=3600):
    ...

The kernel gives a lock back when its holder ends, however it ends. The files stay where they are: to remove one would
part those who wait at the old file from those who come to a new one.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.errors import InfrastructureError
from a2rl.files import cannot
from a2rl.process import check_stop

LOOK_AGAIN_S = 0.1
WORD_AFTER_S = 2.0
WORD_EVERY_S = 60.0


@contextmanager
def held(path: Path, meanwhile: str, timeout_s: float, shared: bool = False) -> Iterator[None]:
    """Holds the lock, once all others have given it back.

    Args:
        meanwhile: what the user is told whoever has it is doing.
        shared: others that hold it shared may have it at the same time.

    Raises:
        Interrupted: the user stopped the pipeline.
        InfrastructureError: it was not given back in time, or there can be no such file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise cannot(f"lock {path}", error) from error
    try:
        _wait(lock, path, meanwhile, timeout_s, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _wait(lock: int, path: Path, meanwhile: str, timeout_s: float, kind: int) -> None:
    started = time.monotonic()
    next_word = started + WORD_AFTER_S
    while not _taken(lock, kind):
        check_stop()
        now = time.monotonic()
        if now - started > timeout_s:
            raise InfrastructureError(
                f"{meanwhile}, for more than {timeout_s:.0f} s: end that process (it holds {path}), or try again later"
            )
        if now >= next_word:
            sys.stderr.write(f"waiting: {meanwhile} ({now - started:.0f} s)\n")
            next_word = now + WORD_EVERY_S
        time.sleep(LOOK_AGAIN_S)


def _taken(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
