"""Tests agents that resist their end and supervisors that are killed: soon no process is left, on any machine.

Each agent limits its own time and number of processes, because other programs use this machine, too.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.linux.cgroup import ControlGroup
from a2rl.linux.orphans import MARKER, ProcessTrace, end_orphans, has_orphans
from a2rl.linux.process_tree import children, descendants, read_process
from a2rl.linux.resources import Resources
from a2rl.sandbox.command import AgentCommand, AgentExit
from a2rl.sandbox.process import AgentProcess
from tests.run_maker import FIRST_THREAD_ENDS, alive, kill, wait_for

NAMED = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"\\xff) S 1 \\n\\x1b[", 0, 0, 0)
open("ready", "w").close()
time.sleep(60)
"""
CHAINS = """
import os, signal, time
end = time.time() + 60
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(4):
    if os.fork() == 0:
        while time.time() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
        os._exit(0)
open("ready", "w").close()
time.sleep(60)
"""
TRACED = """
import ctypes, os, signal, time
child = os.fork()
if child == 0:
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
os.waitpid(child, os.WUNTRACED)
open("ready", "w").close()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
URGENT = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for urgent in (lambda: os.setpriority(os.PRIO_PROCESS, 0, -20),
               lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))):
    try:
        urgent()
    except OSError:
        pass
end = time.time() + 8
open("ready", "w").close()
while time.time() < end:
    pass
time.sleep(60)
"""
CROWD = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
for _ in range(8):
    try:
        os.fork()
        os.setsid()
    except OSError:
        pass
open("ready", "w").close()
time.sleep(60)
"""
BARE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.chdir("/")
        os.execve(sys.executable, ["x", "-I", "-S", "-c", sys.argv[1], sys.argv[2]], {})
    time.sleep(1.5)
    os._exit(0)
time.sleep(60)
"""
BARE_REST = """
import os, sys, time
open(sys.argv[1] + ".part", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(60)
"""
WITHOUT_GROUPS = """
from a2rl.linux.cgroup import ControlGroup
ControlGroup.make = classmethod(lambda cls, name: None)
from a2rl.sandbox.supervisor import main
main()
"""
QUICK_S = 9.0
Start = Callable[..., AgentProcess]


@pytest.fixture(params=["with a control group", "without one"])
def start(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Returns a function that starts a Python program as an agent."""
    if request.param == "without one":
        monkeypatch.setattr("a2rl.sandbox.process.module_command", lambda _: [sys.executable, "-c", WITHOUT_GROUPS])
    elif not groups_are_here():
        pytest.skip("this user can make no control groups here")

    def begin(program: str, *arguments: str) -> AgentProcess:
        command = [sys.executable, "-I", "-S", "-c", program, *arguments]
        limits, trace = Resources(processes=200), str(tmp_path / "trace")
        return AgentProcess(
            AgentCommand(command, str(tmp_path), {}, str(tmp_path / "log"), resources=limits, trace=trace), settings
        )

    return begin


def groups_are_here() -> bool:
    group = ControlGroup.make(f"a2rl-test-{os.getpid()}")
    if group is not None:
        group.remove()
    return group is not None


def working_in(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and alive(process.pid):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("program", [NAMED, CHAINS, TRACED, URGENT, CROWD],
                         ids=["named", "chains", "traced", "urgent", "crowd"])  # fmt: skip
def test_an_agent_that_fights_its_end_is_gone_soon(start: Start, tmp_path: Path, program: str) -> None:
    with start(program) as process:
        wait_for((tmp_path / "ready").exists)
        started = time.monotonic()
        result = process.stop()
        seconds = time.monotonic() - started
    assert result.survivors == ()
    assert not working_in(tmp_path)
    assert seconds < QUICK_S
    assert not (tmp_path / "trace").exists()


def test_a_process_may_be_called_anything(start: Start, tmp_path: Path, settings: Settings) -> None:
    with start(NAMED) as odd:
        wait_for((tmp_path / "ready").exists)
        [named] = [
            pid for pid in descendants(odd.pid) if (found := read_process(pid)) is not None and "xff" in found.name
        ]
        found = read_process(named)
        assert found is not None
        assert found.name.isprintable()
        assert found.parent in children(odd.pid)  # the parentheses and numbers in the name are not parsed
        other = AgentCommand(["true"], str(tmp_path), {"PATH": os.environ["PATH"]}, str(tmp_path / "other.log"))
        with AgentProcess(other, settings) as process:
            assert process.wait(30) == AgentExit(0, "", 0)


@pytest.mark.heavy
@pytest.mark.parametrize("victim", ["the guard", "its child", "both"])
def test_killing_the_supervisor_ends_the_agent(start: Start, tmp_path: Path, victim: str) -> None:
    """This holds even for one that wiped its environment."""
    with start(BARE, BARE_REST, str(tmp_path / "daemon.pid")) as process:
        written = tmp_path / "daemon.pid"
        daemon = int(wait_for(lambda: written.exists() and written.read_text()))
        wait_for(lambda: str(daemon) in (tmp_path / "trace").read_text())
        time.sleep(2.5)  # its parent has ended, and the daemon was recorded again
        victims = {"the guard": [process.pid], "its child": children(process.pid)}
        for pid in victims.get(victim, [*children(process.pid), process.pid]):
            kill(pid)
        with pytest.raises(InfrastructureError, match="supervisor was killed"):
            process.wait(30)
    assert not alive(daemon)
    assert not working_in(tmp_path)


def test_a_hanging_supervisor_is_replaced(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping does not raise."""
    monkeypatch.setattr("a2rl.sandbox.process.END_TIMEOUT_S", 1.0)
    with start(TRACED) as process:
        wait_for((tmp_path / "ready").exists)
        for pid in children(process.pid):
            os.kill(pid, 19)
        result = process.stop()
    assert result.survivors == ()
    assert not working_in(tmp_path)


@pytest.mark.heavy
def test_what_cannot_be_ended_is_reported_and_does_not_raise(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test cannot make a process that survives SIGKILL, so the supervisor's signals are dropped.
    without_signals = (
        "from a2rl.linux import process_tree; process_tree.send_signal = lambda pid, number: None; "
        "from a2rl.sandbox import supervisor; supervisor.END_LIMIT_S = 1.0; main()"
    )
    deaf = WITHOUT_GROUPS.replace("main()", without_signals)
    monkeypatch.setattr("a2rl.sandbox.process.module_command", lambda _: [sys.executable, "-c", deaf])
    command = AgentCommand([sys.executable, "-c", NAMED], str(tmp_path), {}, str(tmp_path / "log"))
    with AgentProcess(command, settings) as process:
        wait_for((tmp_path / "ready").exists)
        result = process.stop()
    [(_, name)] = result.survivors
    assert name.startswith("\\xff")
    assert name.isprintable()
    for pid in working_in(tmp_path):
        kill(pid)


def test_a_users_own_shell_in_the_workspace_is_no_stray(start: Start, tmp_path: Path) -> None:
    shell = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=tmp_path,
                         env={"WORKSPACE": str(tmp_path)})  # fmt: skip
    sibling = tmp_path.with_name(tmp_path.name + "0")
    sibling.mkdir()
    neighbour = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"], cwd=sibling)
    try:
        with start(NAMED) as process:
            wait_for((tmp_path / "ready").exists)
            wait_for(lambda: len((tmp_path / "trace").read_text()) > 0)
            for pid in [*children(process.pid), process.pid]:
                kill(pid)
            assert end_orphans(tmp_path / "trace") == ()
        assert alive(shell.pid)
        assert alive(neighbour.pid)
        assert working_in(tmp_path) == [shell.pid]
    finally:
        for each in (shell, neighbour):
            each.kill()
            each.wait()


def test_an_orphan_whose_first_thread_has_ended_is_ended(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    ProcessTrace.begin("a secret", None).write(trace)
    with subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], env={MARKER: "a secret"}) as orphan:
        try:
            wait_for(lambda: (found := read_process(orphan.pid)) is not None and found.state == "Z")
            assert has_orphans(trace)
            assert end_orphans(trace) == ()
            assert orphan.wait(10) == -signal.SIGKILL
        finally:
            orphan.kill()


def test_without_a_trace_nothing_is_ended(tmp_path: Path) -> None:
    assert end_orphans(tmp_path / "none") == ()
    (tmp_path / "spoilt").write_text("{")
    assert end_orphans(tmp_path / "spoilt") == ()


def test_an_agent_that_never_reads_holds_nobody_up(settings: Settings, tmp_path: Path) -> None:
    command: dict[str, Any] = {"takes_messages": True}
    agent = AgentCommand(["sleep", "60"], str(tmp_path), {"PATH": os.environ["PATH"]}, str(tmp_path / "log"), **command)
    with AgentProcess(agent, settings) as process:
        started = time.monotonic()
        for _ in range(40):
            process.send("x" * 500_000)
            process.wait(0.001)
        process.end_input()
        assert time.monotonic() - started < QUICK_S
        process.stop()
        assert time.monotonic() - started < 2 * QUICK_S


def test_a_message_that_is_larger_than_a_pipe_arrives_whole(settings: Settings, tmp_path: Path) -> None:
    agent = AgentCommand(["wc", "-c"], str(tmp_path), {"PATH": os.environ["PATH"]}, str(tmp_path / "log"),
                         takes_messages=True)  # fmt: skip
    with AgentProcess(agent, settings) as process:
        process.send("x" * 3_000_000)
        process.end_input()
        assert process.wait(30) is not None
    assert (tmp_path / "log").read_text() == "3000001\n"
