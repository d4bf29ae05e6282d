"""Tests that a run has one owner: a second process is refused at once, and is told which process owns the run."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import read_model, write_model
from a2rl.run.directory import RunDir
from a2rl.run.owner import LOCK, Owner, idle, owned, queue
from tests.run_maker import REPOSITORY

HOLD = """
import sys, time
from pathlib import Path
from a2rl.run.owner import owned
from a2rl.run.directory import RunDir
with owned(RunDir(Path(sys.argv[1]))):
    print("mine", flush=True)
    time.sleep(600)
"""


QUEUE = """
import sys, time
from pathlib import Path
from a2rl.run.owner import queue
from a2rl.run.directory import RunDir
queue(RunDir(Path(sys.argv[1])))
print("mine", flush=True)
time.sleep(600)
"""


@contextmanager
def process_of(code: str, run: RunDir) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", code, str(run.root)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mine\n"
        yield process
        process.kill()


@pytest.fixture
def other(run: RunDir) -> "Iterator[subprocess.Popen[str]]":
    """Starts another process that owns the run."""
    with process_of(HOLD, run) as process:
        yield process


def test_a_second_process_is_refused_and_told_who_owns_the_run(run: RunDir, other: "subprocess.Popen[str]") -> None:
    with pytest.raises(UsageError, match=f"process {other.pid} on .*a2rl resume {run.id}"), owned(run):
        raise AssertionError("two owners")


def test_so_is_a_second_thread_of_the_same_process(run: RunDir) -> None:
    with owned(run), pytest.raises(UsageError, match=f"process {os.getpid()}"), owned(run):
        raise AssertionError("two owners")


def test_a_run_is_free_when_its_owner_has_ended_or_was_killed(run: RunDir, other: "subprocess.Popen[str]") -> None:
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    for _ in range(2):
        with owned(run):
            pass


def test_a_run_waits_while_who_is_to_begin_it_lives(run: RunDir) -> None:
    assert idle(run) is None
    with process_of(QUEUE, run) as process:
        assert idle(run) == "waiting"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert idle(run) == "interrupted"
    queue(run)
    assert idle(run) == "waiting"
    with owned(run):
        assert idle(run) is None
    assert idle(run) == "interrupted", "this process has left it"


def test_a_process_that_got_the_pid_later_is_another(run: RunDir) -> None:
    queue(run)
    owner = read_model(run.root / LOCK, Owner)
    write_model(run.root / LOCK, owner.model_copy(update={"queued": 1}))
    assert idle(run) == "interrupted"
    write_model(run.root / LOCK, owner.model_copy(update={"host": "another", "pid": 1 << 40}))
    assert idle(run) is None, "it waits for another machine"


def test_children_do_not_go_on_owning_it(run: RunDir) -> None:
    with owned(run):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    with owned(run):
        child.kill()
    child.wait()


@pytest.mark.usefixtures("other")
def test_a_copy_of_a_runs_directory_belongs_to_nobody(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / run.id)
    with owned(RunDir(tmp_path / run.id)):
        assert f'"pid": {os.getpid()}' in (tmp_path / run.id / LOCK).read_text()


@pytest.mark.parametrize("text", ["", "{", "[" * 4000, "[]", '{"pid": "x"}', '{"pid": 1e999}', "\xff" * 5000])
def test_what_the_file_says_does_not_matter(run: RunDir, text: str) -> None:
    (run.root / LOCK).write_text(text)
    assert idle(run) is None
    with owned(run):
        (run.root / LOCK).write_text(text)
        with pytest.raises(UsageError, match="another process"), owned(run):
            raise AssertionError("two owners")


def test_a_process_that_has_ended_is_not_named_as_owner(run: RunDir) -> None:
    with owned(run):
        mine = read_model(run.root / LOCK, Owner)
        for pid, named in ((1 << 40, "another process"), (os.getpid(), f"process {os.getpid()}")):
            (run.root / LOCK).write_text(mine.model_copy(update={"pid": pid}).model_dump_json())
            with pytest.raises(UsageError, match=f"in use by {named}"), owned(run):
                raise AssertionError("two owners")


def test_a_link_in_its_place_is_not_followed(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (run.root / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(InfrastructureError, match="cannot open"), owned(run):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_file_system_without_locks_is_said_to_be_one(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(InfrastructureError, match="does not support locks"), owned(run):
        pass


def test_a_run_that_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run"), owned(RunDir(tmp_path / "none")):
        pass
