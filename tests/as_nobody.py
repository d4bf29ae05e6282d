"""Runs code as an ordinary user, because root may read and write everything, which would hide faults."""

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def folder_of_nobody() -> Iterator[Path]:
    """Returns a new folder that an ordinary user owns and can reach."""
    folder = Path(tempfile.mkdtemp(dir="/tmp")).resolve()
    try:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_nobody(work: Callable[[], None]) -> None:
    """Runs a function as an ordinary user: in a child process if we are root, else in this process.

    Raises:
        AssertionError: The function raised an exception; the message has its traceback.
    """
    if os.geteuid() != 0:
        work()
        return
    said, saying = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(said)
        os.write(saying, _trace_of(work).encode()[-4000:])
        os._exit(0)
    os.close(saying)
    with os.fdopen(said, "rb") as reader:
        trace = reader.read().decode()
    os.waitpid(child, 0)
    assert not trace, trace


def _trace_of(work: Callable[[], None]) -> str:
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()
    except BaseException:  # noqa: BLE001 - it is told outside
        return traceback.format_exc()
    return ""
