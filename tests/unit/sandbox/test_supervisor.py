"""Tests the supervisor: no process of an agent is left, its exit status is right, its log is complete and limited."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.core.settings import Settings
from a2rl.linux.orphans import MARKER
from a2rl.linux.process_tree import children
from a2rl.sandbox import process as process_module
from a2rl.sandbox.agent_log import FULL, keep_log
from a2rl.sandbox.command import AgentCommand, AgentExit
from a2rl.sandbox.process import AgentProcess
from tests.run_maker import alive, kill, wait_for

# Becomes a daemon in a new session: two forks, with setsid in between.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".tmp", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".tmp", sys.argv[1])
        time.sleep(600)
    os._exit(0)
"""
# Ignores SIGTERM, and stops itself, so that it could not even handle it.
STUBBORN = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1] + ".tmp", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Callable[..., AgentProcess]:
    def start(*command: str) -> AgentProcess:
        return AgentProcess(AgentCommand(list(command), str(tmp_path), dict(os.environ), log(tmp_path)), settings)

    return start


def log(folder: Path) -> str:
    return str(folder / "agent.log")


def ended(process: AgentProcess) -> AgentExit:
    result = process.wait(30)
    assert result is not None
    return result


def family(tmp_path: Path, stubborn: bool = False) -> tuple[str, list[Path]]:
    """Returns a command that starts a daemon (and a child that ignores signals) and waits, and the pid files."""
    (tmp_path / "daemon.py").write_text(DAEMON)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    files = [tmp_path / name for name in ("shell.pid", "daemon.pid", "stubborn.pid")]
    python = sys.executable
    command = f"echo $$ > shell.tmp; mv shell.tmp {files[0]}; {python} daemon.py {files[1]}; "
    if stubborn:
        return command + f"{python} stubborn.py {files[2]} & sleep 600", files
    return command + "sleep 600", files[:2]


def read_pids(files: list[Path]) -> list[int]:
    wait_for(lambda: all(file.exists() for file in files))
    return [int(file.read_text()) for file in files]


def test_stop_ends_a_daemon_and_a_stopped_child(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """The child ignores signals."""
    command, files = family(tmp_path, stubborn=True)
    with start("sh", "-c", command) as process:
        pids = read_pids(files)
        assert process.wait(0.01) is None
        assert all(alive(pid) for pid in pids)
        result = process.stop()
    assert not any(alive(pid) for pid in pids)
    assert result.killed >= 4  # the shell, its sleep, the daemon, and the child that ignores signals
    assert result.exit_code == -15


def test_what_an_agent_leaves_behind_is_gone_when_it_ends(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    command, files = family(tmp_path)
    ending = f"until [ -e {files[1]} ]; do sleep 0.01; done; exit 7"
    with start("sh", "-c", command.replace("sleep 600", ending)) as process:
        result = ended(process)
    assert result.exit_code == 7
    assert result.killed >= 1
    assert not any(alive(pid) for pid in read_pids(files))


def test_leaving_the_context_by_an_error_ends_the_agent(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    command, files = family(tmp_path)
    pids = []

    def fail_while_it_runs() -> None:
        with start("sh", "-c", command):
            pids.extend(read_pids(files))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_it_runs()
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


PIPELINE = """
import json, sys, time
from pathlib import Path
from a2rl.sandbox.agent_log import FULL, AgentLog, keep_log
from a2rl.linux.orphans import MARKER
from a2rl.sandbox.process import AgentProcess
from a2rl.core.settings import Settings
from a2rl.sandbox.command import AgentCommand

process = AgentProcess(AgentCommand(*json.loads(sys.argv[1])), Settings.load())
time.sleep(600)
"""


def test_killing_the_pipeline_ends_the_agent_and_all_it_started(
    settings: Settings, tmp_path: Path, repository: Path
) -> None:
    command, files = family(tmp_path)
    arguments = json.dumps([["sh", "-c", command], str(tmp_path), dict(os.environ), log(tmp_path)])
    pipeline = subprocess.Popen([sys.executable, "-c", PIPELINE, arguments], cwd=repository)
    try:
        pids = read_pids(files)
    finally:
        kill(pipeline.pid)
        pipeline.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids))


@pytest.mark.parametrize("dies", [(), ("child",), ("guard",), ("child", "guard")], ids=str)
def test_the_link_to_the_temporary_folder_goes_with_the_agent(
    settings: Settings, tmp_path: Path, dies: tuple[str, ...]
) -> None:
    script, trace = 'echo "$TMPDIR" > tmp; mv tmp where; exec sleep 600', str(tmp_path / "processes.json")
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = AgentCommand(["sh", "-c", script], str(tmp_path), env, log(tmp_path), trace=trace)
    with AgentProcess(command, settings) as process:
        wait_for((tmp_path / "where").exists)
        link = Path((tmp_path / "where").read_text().strip())
        assert link.readlink() == tmp_path
        pids = {"guard": process.pid, "child": children(process.pid)[0]}
        for each in dies:
            os.kill(pids[each], signal.SIGSTOP)
        for each in dies:
            os.kill(pids[each], signal.SIGKILL)
        process.stop()
    assert not link.is_symlink()


def test_the_agents_root_is_found_however_slow_the_machine_is(
    start: Callable[..., AgentProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import runpy, time; time.sleep(2.5); runpy.run_module('a2rl.sandbox.supervisor', run_name='__main__')"
    monkeypatch.setattr(process_module, "module_command", lambda module: [sys.executable, "-P", "-c", slow])
    with start("sleep", "60") as process:
        assert process.root in children(process.pid)


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [("true", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("exit 255", 255)],
)
def test_the_exit_status_is_the_agents_own(start: Callable[..., AgentProcess], command: str, exit_code: int) -> None:
    with start("sh", "-c", command) as process:
        assert ended(process) == AgentExit(exit_code, "", 0)


def test_an_agent_can_use_signals_as_any_program_can(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    # An ignored SIGTERM would be inherited, and `timeout 60 python train.py` would never end.
    with start("timeout", "0.1", "sleep", "5") as process:
        assert ended(process).exit_code == 124
    status = tmp_path / "status"
    with start("cp", "/proc/self/status", str(status)) as process:
        ended(process)
    ignored = next(line for line in status.read_text().splitlines() if line.startswith("SigIgn"))
    mask = int(ignored.split()[1], 16)  # other descriptors may be inherited from the process that started the tests
    assert not [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE) if mask >> (each - 1) & 1]


def test_a_command_that_is_not_there_is_reported(start: Callable[..., AgentProcess]) -> None:
    with start("no-such-agent", "--fast") as process:
        assert ended(process) == AgentExit(None, "no-such-agent: No such file or directory", 0)


def test_a_file_that_may_not_be_run_is_reported(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("#!/bin/sh\n")
    with start(str(tmp_path / "agent")) as process:
        assert ended(process) == AgentExit(None, f"{tmp_path}/agent: Permission denied", 0)


def test_the_log_has_all_that_the_agent_printed(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    with start("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo to stderr >&2; echo the last line") as process:
        ended(process)
    text = Path(log(tmp_path)).read_text()
    assert text.endswith("xto stderr\nthe last line\n")
    assert text.count("x") == 3_000_000


def test_the_log_is_limited_and_says_so_and_the_agent_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("a2rl.sandbox.agent_log.MAX_BYTES", 1000)
    theirs, ours = os.pipe()
    with os.fdopen(theirs, "rb") as source:
        keeper = threading.Thread(target=keep_log, args=(source, log(tmp_path), False))
        keeper.start()
        with os.fdopen(ours, "wb") as printed:
            printed.write(b"x" * (1 << 20))  # more than a pipe holds
        keeper.join()
    assert Path(log(tmp_path)).read_bytes() == b"x" * 1000 + FULL


def test_a_second_attempt_adds_to_the_log(start: Callable[..., AgentProcess], tmp_path: Path) -> None:
    for word in ("first", "second"):
        with start("echo", word) as process:
            ended(process)
    assert Path(log(tmp_path)).read_text() == "first\nsecond\n"


def test_the_agent_gets_the_given_environment_and_folder(settings: Settings, tmp_path: Path) -> None:
    """It gets no input."""
    command = AgentCommand(["sh", "-c", f"pwd; cat; env | grep -v -e ^{MARKER} -e ^PWD -e ^_ -e ^SHLVL"], str(tmp_path),
                           {"PATH": os.environ["PATH"], "ONLY": "this"}, log(tmp_path))  # fmt: skip
    with AgentProcess(command, settings) as process:
        ended(process)
    lines = Path(log(tmp_path)).read_text().splitlines()
    assert lines[0] == str(tmp_path)
    assert sorted(lines[1:]) == sorted([f"PATH={os.environ['PATH']}", "ONLY=this"])
