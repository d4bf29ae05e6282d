"""Work as an ordinary user, where being root would hide the fault: root may read and write what nobody may."""

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
    """A new folder that an ordinary user can reach and owns."""
    folder = Path(tempfile.mkdtemp(dir="/tmp")).resolve()
    try:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_nobody(work: Callable[[], None]) -> None:
    """Does the work in a child that is an ordinary user; here, where we are one.

    Raises:
        AssertionError: it raised something; the message has its trace.
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
