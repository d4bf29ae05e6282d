"""Tests child processes of the pipeline: some end with it, and it sends messages to some without waiting."""

import ast
import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from a2rl.core import processes
from a2rl.core.errors import InfrastructureError, last_words
from a2rl.core.processes import Child, Reading, RestartedChild, read_apart, run_child, tied_to_parent
from a2rl.core.settings import Settings
from a2rl.grading.service_process import ServiceProcess
from a2rl.grading.submission_states import crash_mark
from a2rl.run.directory import RunDir
from a2rl.sandbox import command
from a2rl.sandbox.command import LineReader, LineWriter
from a2rl.sandbox.process import AgentProcess
from tests.run_maker import alive, kill, spec, wait_for

PARENT = """
import subprocess, sys, threading, time
from a2rl.core.processes import tied_to_parent
def start():
    print(subprocess.Popen(tied_to_parent(["sleep", "60"])).pid, flush=True)
    time.sleep(60)
threading.Thread(target=start).start()
"""


def test_a_tied_program_ends_when_its_parent_is_killed(repository: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=repository, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        kill(parent.pid)
        wait_for(lambda: not alive(child))


def test_a_program_whose_parent_has_ended_already_is_not_started() -> None:
    command = tied_to_parent(["echo", "started"])
    command[-6] = "1"  # the parent that it should have had
    assert subprocess.run(command, capture_output=True, check=True).stdout == b""


def test_a_limit_is_never_above_that_of_the_parent() -> None:
    asked = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[1] >> 20)"
    inner = tied_to_parent([sys.executable, "-c", asked], memory_bytes=4 << 30)
    found = subprocess.run(tied_to_parent(inner, memory_bytes=2 << 30), capture_output=True, check=True, text=True)
    assert found.stdout == "2048\n"


def test_work_between_fork_and_exec_is_in_one_place(repository: Path) -> None:
    """That place has no threads."""
    found = [
        str(path.relative_to(repository))
        for folder in ("a2rl", "stages", "flows", "tasks")
        for path in sorted((repository / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "preexec_fn"
    ]
    assert found == ["a2rl/sandbox/supervisor.py"]


def test_a_child_that_cannot_be_started_again_at_once_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine has no memory, or the agent has taken all processes of the user."""
    monkeypatch.setattr(processes, "RESTART_PAUSE_S", 0.01)
    programs = iter([["true"], ["/no/such/program"], ["cat"]])
    restarted = RestartedChild(lambda: Child(next(programs), {"PATH": os.defpath}))
    first = restarted.child
    restarted.watch()
    wait_for(lambda: restarted.child is not first)
    assert restarted.child.is_alive
    restarted.close(1.0)


def test_a_child_that_dies_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_RESTARTS", 2)
    monkeypatch.setattr(processes, "RESTART_PAUSE_S", 0.3)
    given_up, begun_s = threading.Event(), time.monotonic()
    restarted = RestartedChild(lambda: Child(["true"], {"PATH": os.defpath}), on_given_up=given_up.set)
    restarted.watch()
    assert given_up.wait(30)
    assert time.monotonic() - begun_s > 0.6
    restarted.close(1.0)


def test_each_pipeline_counts_the_crashes_of_its_own_service(settings: Settings, tmp_path: Path) -> None:
    """A service that was stopped during a copy leaves a count, too."""
    nowhere, run = dataclasses.replace(settings, root=settings.root / "nowhere"), RunDir.create(tmp_path, spec())
    mark = crash_mark(run, 1)
    mark.parent.mkdir(exist_ok=True)
    mark.write_bytes(b"...")
    with pytest.raises(InfrastructureError, match="cannot start the grading service"):
        ServiceProcess(run, nowhere)
    assert not mark.exists()


def test_a_process_that_cannot_be_started_is_a_machine_failure(settings: Settings, tmp_path: Path) -> None:
    """So the stage is tried again."""
    nowhere, run = dataclasses.replace(settings, root=settings.root / "nowhere"), RunDir.create(tmp_path, spec())
    with pytest.raises(InfrastructureError, match="cannot start the grading service"):
        ServiceProcess(run, nowhere)
    with pytest.raises(InfrastructureError, match="cannot start the agent's supervisor"):
        AgentProcess(command.AgentCommand(["true"], "/", {}, ""), nowhere)


def test_a_feed_never_waits_and_drops_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MAX_WAITING", 1 << 20)
    theirs, ours = os.pipe()
    feed = LineWriter(ours)
    assert feed.put(b"x" * 500_000)
    assert feed.put(b"y" * 500_000)
    assert not feed.put(b"z" * 500_000)
    feed.end()
    reader, got = LineReader(theirs), list[bytes]()
    while not reader.is_over:
        got += reader.read()
        feed.push()
    assert [(len(line), line[:1]) for line in got] == [(500_000, b"x"), (500_000, b"y")]
    assert not feed.is_open


def test_a_feed_whose_reader_has_ended_is_closed() -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    feed = LineWriter(ours)
    feed.put(b"x")
    assert not feed.is_open
    assert not feed.put(b"y")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("x = [0] * 10**9", "MemoryError"),
        ("while True: pass", "it needed more than 1 s of processor time"),
        ("import time; time.sleep(600)", "it took longer than 10 s"),
        ("import sys\nwhile True: sys.stdout.write('x' * 10**6)", "File too large"),
        ("import ctypes; ctypes.string_at(0)", "its process ended with status -11"),
        ("raise ValueError('what is wrong')", "ValueError: what is wrong"),
        ("import os; os.kill(os.getpid(), 9)", "its process ended with status -9"),
    ],
)
def test_a_process_that_reads_what_an_agent_wrote_is_limited(
    settings: Settings, tmp_path: Path, code: str, problem: str
) -> None:
    (tmp_path / "hostile_reader.py").write_text(f"print('begun', flush=True)\n{code}\n")
    settings = Settings(tmp_path, settings.environ)
    timeout_s = 10 if "sleep" in code else 120
    read = read_apart("hostile_reader", [], settings, "", timeout_s, memory_bytes=512 << 20, cpu_s=1)
    assert problem in read.problem
    assert read.is_machines == ("sleep" in code or "kill" in code)
    assert read.output.startswith(b"begun\n")


def test_a_reader_of_agent_files_is_told_and_says_something(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text("import sys\nprint(sys.stdin.read() + sys.argv[1])\n")
    assert read_apart("reader", ["b"], Settings(tmp_path, settings.environ), "a", 60) == Reading(b"ab\n", "")


def test_a_child_that_cannot_be_killed_hides_no_other_error(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in an uninterruptible wait."""
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(60)\n")
    started: list[subprocess.Popen[bytes]] = []

    def survive(process: "subprocess.Popen[bytes]") -> None:
        started.append(process)

    with monkeypatch.context() as patch:
        patch.setattr(processes, "KILL_TIMEOUT_S", 0.1)
        patch.setattr(subprocess.Popen, "kill", survive)
        with pytest.raises(InfrastructureError, match="took longer than 0 s"):
            run_child(["sleep", "60"], {"PATH": os.defpath}, tmp_path / "log", 0.1)
        read = read_apart("sleeper", [], Settings(tmp_path, settings.environ), "", 0.1)
        assert read == Reading(b"", "it took longer than 0 s")
    for process in started:
        process.kill()
        process.wait()


ENDED = """Traceback (most recent call last):
  File "worker.py", line 12, in <module>
ModuleNotFoundError: No module named 'flashinfer'
"""


@pytest.mark.parametrize(
    "warning",
    [
        "[rank0]:[W1126 23:05:56.2 ProcessGroupNCCL.cpp:1575] destroy_process_group() was not called\n",
        "tracker.py:254: UserWarning: there appear to be 2 leaked objects\n  warnings.warn('leaked')\n",
        "2026-11-26 23:05:56 WARNING closing\n\n",
        "",
    ],
)
def test_a_warning_at_the_end_does_not_hide_the_error(warning: str) -> None:
    assert last_words(ENDED + warning) == "ModuleNotFoundError: No module named 'flashinfer'"


@pytest.mark.parametrize("error", ["DeprecationWarning: now an error", "a2rl: no WARNING.md in it"])
def test_an_error_that_speaks_of_warnings_is_no_warning(error: str) -> None:
    assert last_words(f"{ENDED}{error}\n") == error


def test_a_program_that_only_warns_or_says_nothing() -> None:
    assert last_words("UserWarning: odd\n") == "UserWarning: odd"
    assert last_words(" \n", "it wrote nothing") == "it wrote nothing"
