"""Attacks the sandbox: every attempt to escape succeeds without it and fails inside, as root and as an ordinary user.

The attempts are the functions of tests/isolation/attempts.py. One agent under a real supervisor tries all of them.
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.linux import landlock
from a2rl.sandbox.command import AgentCommand, AgentExit, Confinement
from a2rl.sandbox.isolation import SandboxKind
from a2rl.sandbox.process import AgentProcess
from tests.isolation.attempts import BREAKOUTS, WORK
from tests.isolation.scene import Scene, make_scene
from tests.run_maker import alive, wait_for

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
BREAKOUT_NAMES, WORK_NAMES = ([attempt.__name__ for attempt in each] for each in (BREAKOUTS, WORK))
TAKES_ROOT = {
    "read_shadow", "read_by_handle", "read_the_disk", "use_a_raw_socket", "use_packets", "use_the_rights_of_root",
    "mount", "write_a_setting_of_the_kernel", "write_a_control_group", "forge_input_of_a_terminal",
}  # fmt: skip
"""What an ordinary user cannot do in any case."""
TAKES_A_KERNEL = {
    "use_io_uring", "use_multipath_tcp", "use_the_kernels_cryptography", "use_another_table_of_calls", "read_the_disk",
    "make_a_user_namespace", "clone_into_a_namespace", "clone3", "use_a_message_queue", "write_a_control_group",
    "connect_to_another_port_by_ipv6", "send_udp_by_ipv6", "forge_input_of_a_terminal", "mount", "keep_a_key",
}  # fmt: skip
"""What some kernels, containers and machines have not."""
USERS = ("root", "nobody") if os.geteuid() == 0 else ("user",)
BWRAP = pytest.mark.skipif(not shutil.which("bwrap"), reason="bwrap is not installed")
Outcomes = Callable[[str, SandboxKind], dict[str, str]]


@pytest.fixture(scope="module")
def scenes() -> Iterator[Callable[[str], Scene]]:
    with ExitStack() as stack:

        @functools.cache
        def scene_of(user: str) -> Scene:
            if user == "nobody" and not Path("/usr/bin/python3").exists():
                pytest.skip("no Python that every user may run")
            return stack.enter_context(make_scene(user))

        yield scene_of


@pytest.fixture(scope="module")
def outcomes(scenes: Callable[[str], Scene]) -> Outcomes:
    @functools.cache
    def of(user: str, sandbox: SandboxKind) -> dict[str, str]:
        return scenes(user).attempts(sandbox)

    return of


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("attempt", BREAKOUT_NAMES)
def test_an_agent_cannot(outcomes: Outcomes, user: str, attempt: str) -> None:
    if user != "root" and attempt in TAKES_ROOT:
        pytest.skip("only root could, without a sandbox")
    free = outcomes(user, "none")[attempt]
    if free and attempt in TAKES_A_KERNEL:
        pytest.skip(f"this machine has not got it: {free}")
    assert not free, "the attempt does not bite"
    assert outcomes(user, "landlock")[attempt]


@pytest.mark.parametrize("user", USERS)
def test_connections_are_logged_allowed_or_not(scenes: Callable[[str], Scene], outcomes: Outcomes, user: str) -> None:
    outcomes(user, "landlock")
    facts, logged = scenes(user).facts, scenes(user).network
    seen = {(line["family"], line["address"], line["port"], line["allowed"]) for line in logged}
    assert ("AF_INET", "127.0.0.1", facts["grading_port"], True) in seen
    assert ("AF_INET", "127.0.0.1", facts["other_port"], False) in seen
    assert ("AF_INET", facts["foreign"], facts["grading_port"], False) in seen
    assert ("AF_UNIX", facts["local_socket"], None, False) in seen
    assert ("AF_UNIX", f"@{facts['abstract_socket']}", None, False) in seen
    assert not [line for line in logged if line["allowed"] and line["port"] == facts["other_port"]]


@BWRAP
@pytest.mark.parametrize("user", USERS)
def test_bwrap_lets_nothing_out_either_and_all_work_go_on(outcomes: Outcomes, user: str) -> None:
    free, confined = outcomes(user, "none"), outcomes(user, "bwrap")
    assert not [name for name in BREAKOUT_NAMES if not free[name] and not confined[name]]
    assert not [(name, confined[name]) for name in WORK_NAMES if confined[name]]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("attempt", WORK_NAMES)
def test_an_agent_can(scenes: Callable[[str], Scene], outcomes: Outcomes, user: str, attempt: str) -> None:
    layers = scenes(user).isolation("landlock").layers
    if attempt == "use_a_terminal" and not {"devices", "user"} & set(layers):
        pytest.skip("where terminals are everybody's, an agent gets none")
    if attempt == "ask_who_and_where_one_is" and "user" in layers and "devices" not in layers:
        pytest.skip("where mounts are refused, a user of its own has no name")
    assert not outcomes(user, "landlock")[attempt]


@pytest.mark.parametrize("user", USERS)
def test_without_its_own_namespaces_an_agent_stays_inside(user: str) -> None:
    """All its work goes on as well."""
    with make_scene(user) as scene:
        free = scene.attempts("none")
        scene.without = frozenset({"user", "devices", "processes"})
        confined = scene.attempts("landlock")
    broken = {name for name in BREAKOUT_NAMES if not free[name] and not confined[name]}
    assert broken <= {"read_shared_memory"}  # which is everybody's there
    assert {name for name in WORK_NAMES if confined[name]} <= {"use_a_terminal"}  # those that exist belong to others


FAMILY = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("pids", "w").write(f"{os.getpid()} {os.getppid()}")
        os.rename("pids", "daemon.pid")
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("sandbox", ["none", "landlock", pytest.param("bwrap", marks=BWRAP)])
def test_a_daemon_that_ignores_signals_is_gone_with_the_agent(
    scenes: Callable[[str], Scene], sandbox: SandboxKind
) -> None:
    scene = scenes(USERS[0])
    file = scene.run.workspace / "daemon.pid"
    file.unlink(missing_ok=True)
    with scene.start([scene.python, "-I", "-S", "-c", FAMILY], sandbox) as supervisor:
        wait_for(file.exists)
        before = processes_in(scene.run.workspace)
        assert len(before) >= 2
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        supervisor.wait(30)
        assert not processes_in(scene.run.workspace)
        assert not any(alive(pid) for pid in before)


def processes_in(folder: Path) -> set[int]:
    """Returns the processes whose working directory is the folder."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.add(process.pid)
    return found


@pytest.mark.parametrize("sandbox", ["landlock", pytest.param("bwrap", marks=BWRAP)])
def test_the_agents_exit_status_is_its_own(scenes: Callable[[str], Scene], sandbox: SandboxKind) -> None:
    for command, code in (("exit 3", 3), ("true", 0)):
        assert ended(scenes(USERS[0]).start(["sh", "-c", command], sandbox)).exit_code == code


@pytest.mark.parametrize("sandbox", ["landlock", pytest.param("bwrap", marks=BWRAP)])
def test_an_agent_that_cannot_be_started_is_reported(scenes: Callable[[str], Scene], sandbox: SandboxKind) -> None:
    exit_of_none = ended(scenes(USERS[0]).start(["no-such-agent"], sandbox))
    assert (exit_of_none.exit_code, exit_of_none.error) == (None, "no-such-agent: No such file or directory")


def ended(supervisor: "subprocess.Popen[str]") -> AgentExit:
    with supervisor:
        assert supervisor.stdout is not None
        return AgentExit.of(json.loads(supervisor.stdout.readline()))


def test_what_cannot_be_confined_is_not_started(settings: Settings, tmp_path: Path) -> None:
    confinement = Confinement((), (), (), (), (), "", bwrap="/bin/false")
    command = AgentCommand(
        ["touch", "ran"], str(tmp_path), {"PATH": os.environ["PATH"]}, str(tmp_path / "log"), confinement
    )
    with pytest.raises(InfrastructureError, match="cannot be confined"), AgentProcess(command, settings) as process:
        process.wait(30)
    assert not (tmp_path / "ran").exists()
