"""Tests locks between processes: taken in turn, released at exit, and waited for with a message and a timeout."""

import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from a2rl.core import locks
from a2rl.core import processes as process
from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.core.locks import file_lock
from tests.as_nobody import as_nobody, folder_of_nobody


def hold_in_a_child(path: Path) -> int:
    """Starts a process that holds the lock when this returns."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with file_lock(path, "nobody", 10):
            os.write(tell, b"!")
            time.sleep(60)
        os._exit(0)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_lock_that_is_not_released_in_time_is_a_named_error(tmp_path: Path) -> None:
    child = hold_in_a_child(tmp_path / "lock")
    try:
        with (
            pytest.raises(InfrastructureError, match=r"another run grades.*lock"),
            file_lock(tmp_path / "lock", "another run grades", 0.2),
        ):
            pass
    finally:
        end(child)


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    end(hold_in_a_child(tmp_path / "lock"))
    with file_lock(tmp_path / "lock", "nobody", 0):
        pass


def test_who_waits_says_so_and_stops_when_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "FIRST_NOTICE_S", 0.0)
    stop = threading.Event()
    monkeypatch.setattr(process, "STOP", stop)
    child = hold_in_a_child(tmp_path / "lock")
    threading.Timer(0.5, stop.set).start()
    try:
        with pytest.raises(InterruptedByUserError), file_lock(tmp_path / "lock", "another run grades the baseline", 60):
            pass
    finally:
        end(child)
    assert capsys.readouterr().err.startswith("waiting: another run grades the baseline")


def test_readers_share_and_keep_a_writer_out(tmp_path: Path) -> None:
    with (
        file_lock(tmp_path / "lock", "a", 0, shared=True),
        file_lock(tmp_path / "lock", "b", 0, shared=True),
        pytest.raises(InfrastructureError),
        file_lock(tmp_path / "lock", "a reader", 0.2),
    ):
        pass


@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_on_a_read_only_disk_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    path, really_open = tmp_path / "lock", os.open
    if is_there:
        path.touch()

    def open_read_only(place: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR and (path.exists() or flags & os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really_open(place, flags, mode)

    monkeypatch.setattr(os, "open", open_read_only)
    with file_lock(path, "nobody", 0, shared=True), file_lock(path, "nobody", 0, shared=True):
        pass
    if not is_there:
        with pytest.raises(InfrastructureError, match="read-only"), file_lock(path, "nobody", 0):
            pass


def test_what_another_user_never_locked_can_be_read() -> None:
    with folder_of_nobody() as folder:
        folder.chmod(0o555)

        def read() -> None:
            with file_lock(folder / "lock", "nobody", 0, shared=True):
                pass
            with pytest.raises(InfrastructureError, match="check who owns it"), file_lock(folder / "lock", "x", 0):
                pass

        as_nobody(read)
