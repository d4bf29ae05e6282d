"""Tests an agent's own user, /dev/shm, terminals and process table, and what happens to shared ones."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from a2rl.agent_systems.definition import Agent
from a2rl.core.settings import Settings
from a2rl.execution.command import close_to_others, confinement_of
from a2rl.linux import landlock
from a2rl.run.directory import RunDir
from a2rl.sandbox.command import AgentCommand, Confinement
from a2rl.sandbox.isolation import Isolation
from a2rl.sandbox.namespaces import closed_parent
from a2rl.sandbox.policy import workspace_confinement
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.selection import examine, select_sandbox
from a2rl.sandbox.storage import remove_left_files
from a2rl.sandbox.users import RANGES, assign_user, give_to_user, is_agent_user, unused_user, write_user_database

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give users to agents")
LANDLOCK = pytest.mark.skipif(landlock.abi() < landlock.SCOPES_ABI, reason="this kernel has no Landlock with scopes")
BARE = Isolation(kind="landlock", layers=("landlock", "scopes", "seccomp", "broker"))
MEMORY = Path("/dev/shm")


def needs(*layers: str) -> None:
    if missing := [layer for layer in layers if layer not in examine().own]:
        pytest.skip(f"an agent can have no {missing} of its own here")


Work = Callable[[str], str]


@pytest.fixture
def agent(run: RunDir, settings: Settings) -> Work:
    """Returns a function that runs Python as a run's agent in the strongest sandbox, and returns its output."""
    isolation = select_sandbox("landlock", settings)
    definition = Agent(id="mine", title="mine", start=("true",), folder=run.root / "nowhere")

    def do(text: str, isolation: Isolation = isolation) -> str:
        log = run.logs / "agent.log"
        log.unlink(missing_ok=True)
        confinement = confinement_of(run, definition, settings, isolation, connect=())
        command = AgentCommand(
            [sys.executable, "-I", "-c", text], str(run.workspace), {"PATH": os.environ["PATH"]}, str(log), confinement
        )
        with AgentProcess(command, settings) as process:
            ended = process.wait(60)
        assert ended is not None
        assert ended.exit_code == 0, log.read_text()
        return log.read_text()

    return do


@ROOT
@LANDLOCK
def test_an_agent_of_root_has_a_user_of_its_own_with_a_name(agent: Work, run: RunDir) -> None:
    needs("user", "devices")
    user, name = agent("import os, pwd; print(os.getuid(), pwd.getpwuid(os.getuid()).pw_name)").split()
    assert is_agent_user(int(user))
    assert name == "agent"
    assert run.workspace.stat().st_uid == int(user)
    assert agent("import os; print(*os.getgroups(), os.getgid())").split() == [user]


@ROOT
@LANDLOCK
def test_a_run_keeps_its_user_and_another_run_has_another(agent: Work, new_run: Callable[..., RunDir]) -> None:
    needs("user")
    asked = "import os; print(os.getuid())"
    assert agent(asked) == agent(asked)
    assert assign_user(new_run(run_id="other").workspace) != int(agent(asked))


@ROOT
@LANDLOCK
def test_the_agent_changes_what_it_got_for_writing_only(agent: Work, run: RunDir) -> None:
    needs("user")
    (run.workspace / "code" / "planted.py").write_text("1")
    weights = run.given / "models" / "weights"
    weights.parent.mkdir(parents=True)
    weights.write_text("weights")
    weights.chmod(0o444)
    said = agent(
        "import os; open('code/planted.py', 'w').write('2')\n"
        f"print(open({str(weights)!r}).read())\n"
        f"try: os.chmod({str(weights)!r}, 0o666)\nexcept OSError as error: print(error.strerror)"
    )
    assert said.split("\n")[0] == "weights"
    assert "ermi" in said.split("\n")[1]
    assert (run.workspace / "code" / "planted.py").read_text() == "2"
    assert stat.S_IMODE(weights.stat().st_mode) == 0o444


@ROOT
def test_all_that_is_the_graders_is_closed(run: RunDir) -> None:
    close_to_others(run, keep_way=False)
    assert stat.S_IMODE(run.root.stat().st_mode) == 0o700
    user = unused_user()
    assert closed_parent(run.workspace / "code", user) is not None
    close_to_others(run, keep_way=True)
    assert stat.S_IMODE(run.root.stat().st_mode) == 0o711
    others = [path for path in run.root.iterdir() if path not in (run.workspace, run.given)]
    assert others
    assert not [path for path in others if path.stat().st_mode & 0o077]


def test_a_file_that_vanishes_meanwhile_stops_nothing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite removes the journals of the ledger whenever it closes it."""
    found = [run.root / "ledger.db-wal", run.logs]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(found))
    run.logs.chmod(0o755)
    close_to_others(run, keep_way=True)
    assert stat.S_IMODE(run.logs.stat().st_mode) == 0o700


@ROOT
def test_a_tree_of_any_depth_is_given_away(tmp_path: Path) -> None:
    """A file with another name is not."""
    (folder := tmp_path / "workspace").mkdir()
    (tmp_path / "ledger").write_text("the grader's")
    os.link(tmp_path / "ledger", folder / "linked")
    (folder / "link").symlink_to(tmp_path / "ledger")
    deep = folder
    for _ in range(300):
        deep /= "d"
        deep.mkdir()
    user = unused_user()
    give_to_user(folder, user)
    assert deep.stat().st_uid == user
    assert (folder / "link").lstat().st_uid == user
    assert (tmp_path / "ledger").stat().st_uid == 0


@ROOT
def test_a_user_with_processes_is_given_to_no_other_agent(tmp_path: Path) -> None:
    user = assign_user(tmp_path)
    assert assign_user(tmp_path) == user
    with subprocess.Popen(["sleep", "60"], user=user, group=user, extra_groups=[]) as left:
        try:
            assert assign_user(tmp_path) != user
        finally:
            left.kill()


def test_users_come_from_numbers_that_nobody_hands_out() -> None:
    assert any(unused_user() in numbers for numbers in RANGES)
    assert unused_user() != unused_user()
    assert not is_agent_user(0)
    assert not is_agent_user(os.geteuid())


def test_names_are_those_of_the_system_and_one_more(tmp_path: Path) -> None:
    write_user_database(tmp_path / "names", 1_900_000_007, Path("/home/of/agent"))
    lines = (tmp_path / "names" / "passwd").read_text().splitlines()
    assert lines[-1].startswith("agent:x:1900000007:1900000007:agent:/home/of/agent:/")
    assert lines[:-1] == [line for line in Path("/etc/passwd").read_text().splitlines() if line[:6] != "agent:"]


@LANDLOCK
def test_shared_memory_is_the_agents_own(agent: Work) -> None:
    needs("devices")
    other = MEMORY / f"a2rl-test-{os.getpid()}"
    other.write_text("secret")
    other.chmod(0o666)
    try:
        said = agent(
            f"import os; print(os.path.exists({str(other)!r}))\nopen('/dev/shm/mine-{os.getpid()}', 'w').write('1')"
        )
    finally:
        other.unlink()
    assert said.split() == ["False"]
    assert not Path(f"/dev/shm/mine-{os.getpid()}").exists()


@LANDLOCK
def test_terminals_are_the_agents_own(agent: Work) -> None:
    needs("devices")
    terminal, other = os.openpty()
    try:
        said = agent(
            f"import os, pty; print(os.path.exists({os.ttyname(other)!r})); print(os.ttyname(pty.openpty()[1]))"
        )
    finally:
        os.close(terminal)
        os.close(other)
    assert said.split() == ["False", "/dev/pts/0"]


@LANDLOCK
def test_processes_of_others_are_unseen_and_its_own_end_with_it(agent: Work) -> None:
    needs("processes")
    marker = f"a2rl-{os.getpid()}-left-behind"
    text = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {marker!r}], start_new_session=True)\n"
        f"print(os.path.exists('/proc/{os.getpid()}/status') and open('/proc/{os.getpid()}/cmdline').read() != '' "
        f"and 'pytest' in open('/proc/{os.getpid()}/cmdline').read(), os.getpid())"
    )
    assert agent(text).split() == ["False", "2"]
    assert not [each for each in psutil.process_iter(["cmdline"]) if marker in (each.info["cmdline"] or [])]


@LANDLOCK
@pytest.mark.parametrize(("end", "code"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -6)])
def test_how_an_agent_ended_comes_out_of_its_table_of_processes(
    run: RunDir, settings: Settings, end: str, code: int
) -> None:
    isolation = select_sandbox("landlock", settings)
    definition = Agent(id="mine", title="mine", start=("true",), folder=run.root / "nowhere")
    confinement = confinement_of(run, definition, settings, isolation, connect=())
    work = [sys.executable, "-I", "-S", "-c", f"import os; {end}"]
    command = AgentCommand(work, str(run.workspace), {}, str(run.logs / "agent.log"), confinement)
    with AgentProcess(command, settings) as process:
        ended = process.wait(60)
    assert ended is not None
    assert ended.exit_code == code


def test_without_own_terminals_an_agent_gets_none_of_others(settings: Settings, tmp_path: Path) -> None:
    def use(isolation: Isolation) -> set[str]:
        found = workspace_confinement(tmp_path, isolation, settings, (), (), tmp_path / "log")
        assert found is not None
        return set(found.use)

    assert "/dev/pts" not in use(BARE)
    assert "/dev/pts" in use(Isolation.of("landlock", (*BARE.layers, "devices")))


@LANDLOCK
def test_what_another_program_may_have_left_stays(agent: Callable[..., str]) -> None:
    name = f"a2rl-left-{os.getpid()}"
    said = agent(f"open('/dev/shm/{name}', 'w').write('1' * 16)", BARE)
    (MEMORY / name).unlink()
    assert said == ""


@ROOT
@LANDLOCK
def test_what_an_agent_with_its_own_user_leaves_is_removed(settings: Settings, tmp_path: Path) -> None:
    user, name, log = RANGES[0].start + os.getpid(), f"a2rl-left-{os.getpid()}", tmp_path / "log"
    read = ("/usr", "/bin", "/lib", "/lib64")
    limits = Confinement(read, (), (), ("/dev/shm",), (), str(tmp_path / "network"), landlock.SCOPES_ABI, user=user)
    command = AgentCommand(["/bin/sh", "-c", f"echo 123 > /dev/shm/{name}"], "/", {}, str(log), limits)
    with AgentProcess(command, settings) as process:
        ended = process.wait(60)
    assert ended is not None
    assert not (MEMORY / name).exists()
    assert log.read_text() == f"[a2rl: left in /dev/shm and removed: {name}, 4 bytes]\n"


@ROOT
def test_only_files_of_the_agents_own_user_are_removed(tmp_path: Path) -> None:
    user, place = RANGES[0].start, tmp_path / "memory"
    place.mkdir()
    (place / "folder").mkdir()
    (place / "link").symlink_to(tmp_path)
    names = ["a\n[a2rl: all is well]", os.fsdecode(b"\xff")]
    for name in ("another user's", *names):
        (place / name).touch()
    for name in ("folder", "link", *names):
        os.chown(place / name, user, user, follow_symlinks=False)
    remove_left_files(user, log := tmp_path / "log", place)
    assert sorted(path.name for path in place.iterdir()) == ["another user's", "folder", "link"]
    assert sorted(log.read_text().splitlines()) == [
        "[a2rl: left in /dev/shm and removed: \\udcff, 0 bytes]",
        "[a2rl: left in /dev/shm and removed: a\\n[a2rl: all is well], 0 bytes]",
    ]


@ROOT
def test_what_is_swapped_for_a_link_meanwhile_keeps_its_owner(tmp_path: Path) -> None:
    """It is swapped while a folder is given away."""
    theirs, outside, over = tmp_path / "theirs", tmp_path / "outside", threading.Event()
    for folder in (theirs / "real/below", outside / "below"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (theirs / "link").symlink_to(outside)

    def swap() -> None:
        while not over.is_set():
            for name in ("real", "link"):
                (theirs / name).rename(theirs / "way")
                (theirs / "way").rename(theirs / name)

    swapper = threading.Thread(target=swap)
    swapper.start()
    for number in range(300):
        give_to_user(theirs, RANGES[0].start + number)
    over.set()
    swapper.join()
    assert {path.stat().st_uid for path in (outside, *outside.rglob("*"))} == {0}
