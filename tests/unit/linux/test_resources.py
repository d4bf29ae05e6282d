"""Tests the limits on an agent, by control group or by process limits, and the priority of the grader."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace

import pytest

import a2rl
from a2rl.core import cgroup_folders
from a2rl.core.settings import Settings
from a2rl.grading.model_process import ModelSize
from a2rl.linux import resources
from a2rl.linux.cgroup import ControlGroup
from a2rl.linux.resources import GIB, PROCESSES, Resources, spare_memory
from a2rl.sandbox import storage
from a2rl.sandbox.command import AgentCommand, AgentExit
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.storage import DiskWatch, Measured, _tasks, bytes_below, removed_bytes

FORKS = """
import os, time
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
"""
HOG = """
held = [bytearray(1 << 20) for _ in range(1000)]
print("held", len(held))
"""
Run = Callable[[str, Resources], tuple[AgentExit, str]]


@pytest.fixture
def run_agent(settings: Settings, tmp_path: Path) -> Run:
    def do(program: str, limits: Resources) -> tuple[AgentExit, str]:
        log, folder = tmp_path / "log", tmp_path / "workspace"
        folder.mkdir()
        words, trace = [sys.executable, "-I", "-S", "-c", program], str(tmp_path / "trace")
        command = AgentCommand(words, str(folder), {}, str(log), resources=limits, trace=trace)
        with AgentProcess(command, settings) as process:
            ended = process.wait(60)
        assert ended is not None
        return ended, log.read_text()

    return do


def held() -> list[str]:
    """Returns what control groups can limit on this machine."""
    group = ControlGroup.make(f"a2rl-test-{os.getpid()}")
    if group is None:
        return []
    try:
        return group.limit(Resources(memory=GIB, processes=9))
    finally:
        group.remove()


def test_a_limit_of_the_user_stays_where_ours_is_higher() -> None:
    program = """
import resource
from a2rl.linux.resources import lower_limit
for kind, hard, most, margin in (
    (resource.RLIMIT_AS, 4 << 30, 6 << 30, 0), (resource.RLIMIT_CPU, 7, 3, 5), (resource.RLIMIT_FSIZE, 9, 2, 0)
):
    resource.setrlimit(kind, (hard, hard))
    lower_limit(kind, most, margin)
    print(*resource.getrlimit(kind))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == [f"{4 << 30} {4 << 30}", "2 7", "2 2"]


def test_processes_are_limited(run_agent: Run) -> None:
    if os.geteuid() == 0 and "pids" not in held():
        pytest.skip("root has no such limit without a control group")
    ended, said = run_agent(FORKS, Resources(processes=40))
    assert 20 < int(said) <= 40
    assert ended.killed <= 41


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel limits the processes of other users")
def test_processes_of_root_are_counted(run_agent: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no control group, as in most containers."""
    program = "from a2rl.sandbox import supervisor as it; it.ControlGroup.make = lambda _: None; it.main()"
    monkeypatch.setattr("a2rl.sandbox.process.module_command", lambda *_: [sys.executable, "-c", program])
    ended, _ = run_agent(FORKS + "time.sleep(60)", Resources(processes=40))
    assert ended.stopped.endswith("processes and threads, more than twice 40")
    assert ended.killed > 40


def test_memory_is_limited(run_agent: Run) -> None:
    if "memory" not in held():
        pytest.skip("no control group limits memory here")
    ended, said = run_agent(HOG, Resources(memory=200 << 20))
    assert ended.exit_code == -9
    assert "held" not in said


def test_the_agent_is_ended_first_when_memory_is_used_up(run_agent: Run) -> None:
    _, said = run_agent("print(open('/proc/self/oom_score_adj').read())", Resources())
    assert int(said) == 1000


def test_a_file_larger_than_the_limit_cannot_be_written(run_agent: Run) -> None:
    _, said = run_agent("open('large', 'wb').truncate(3 << 20)", Resources(disk=2 << 20))
    assert "File too large" in said


@pytest.mark.parametrize("removes", [False, True])
def test_files_that_take_more_than_the_limit_end_the_agent(run_agent: Run, removes: bool) -> None:
    program = """
import os, time
held = []
for number in range(5):
    held.append(open(str(number), "wb"))
    held[-1].write(bytes(1 << 20))
    held[-1].flush()
    if REMOVES: os.unlink(str(number))
time.sleep(60)
""".replace("REMOVES", str(removes))
    ended, _ = run_agent(program, Resources(disk=4 << 20))
    assert "its files take" in ended.stopped
    assert ended.exit_code == -15


def test_a_removed_file_counts_while_it_is_mapped(tmp_path: Path) -> None:
    name = tmp_path / "large"
    name.write_bytes(bytes(1 << 20))
    before = removed_bytes([os.getpid()])
    with name.open("r+b") as file:
        mapped = mmap(file.fileno(), 4096)
    name.unlink()
    after = removed_bytes([os.getpid()])
    mapped.close()
    assert after.used >= before.used + (1 << 20) or not after.is_complete
    assert removed_bytes([os.getpid()]).used == before.used


def test_a_file_on_its_way_through_a_socket_is_missed(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "large").open("wb") as file:
        assert removed_bytes([os.getpid()]).is_complete
        socket.send_fds(ours, [b"x"], [file.fileno()])
        assert not removed_bytes([os.getpid()]).is_complete
        os.close(socket.recv_fds(theirs, 1, 1)[1][0])
        assert removed_bytes([os.getpid()]).is_complete


def test_open_files_that_threads_share_are_looked_at_once() -> None:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    looked_at = list(_tasks(os.getpid()))
    end.set()
    assert looked_at == [(os.getpid(), True)]


HIDDEN = {
    "an unreadable program": """
shutil.copyfile("/bin/sleep", "tool")
os.chmod("tool", 0o111)
if os.geteuid() == 0:
    os.setgroups([])
    os.setresuid(12345, 12345, 12345)
subprocess.Popen(["./tool", "30"], pass_fds=[opened])
""",
    "a thread with a table of its own": """
def hold():
    LIBC.unshare(0x400)
    held.set()
    time.sleep(30)
held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
os.close(opened)
shown = os.getpid()
""",
    "a first thread that has ended": """
if (shown := os.fork()) == 0:
    threading.Thread(target=time.sleep, args=(30,)).start()
    LIBC.pthread_exit(None)
time.sleep(1)
os.close(opened)
""",
    "a map at a low address": """
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.mmap(0x100000, 4096, 1, 0x11, opened, 0)  # PROT_READ, MAP_SHARED and MAP_FIXED
os.close(opened)
shown = os.getpid()
""",
}


@pytest.mark.parametrize("place", HIDDEN)
def test_a_removed_file_cannot_be_hidden(place: str, tmp_path: Path) -> None:
    """Either it is counted, or what the disk has lost is."""
    program = f"""
import ctypes, os, shutil, subprocess, sys, threading, time
from a2rl.sandbox.storage import removed_bytes
LIBC = ctypes.CDLL(None)
opened = os.open("large", os.O_RDWR | os.O_CREAT)
os.write(opened, bytes(1 << 20))
os.unlink("large")
shown = None
{HIDDEN[place]}
time.sleep(0.5)
from a2rl.linux.process_tree import descendants
processes = [shown] if shown else list(descendants(os.getpid()))
print(removed_bytes(processes).used >= 1 << 20 or not removed_bytes(processes).is_complete, flush=True)
for process in descendants(os.getpid()):
    os.kill(process, 9)
time.sleep(0.5)
print(removed_bytes(descendants(os.getpid())).is_complete, flush=True)
os._exit(0)
"""
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
        env={"PYTHONPATH": str(Path(a2rl.__file__).parent.parent)},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True"]


def test_an_agent_may_have_half_of_the_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides those that it has from an earlier start."""
    free, found = iter([100_000, 99_000, 60_000]), iter([70_000, 71_000, 120_001])
    monkeypatch.setattr(storage, "free_space", lambda _: (50 << 30, next(free)))
    monkeypatch.setattr(storage, "bytes_below", lambda _: Measured(0, True, next(found)))
    watch = DiskWatch([str(tmp_path)], 25 << 30)
    assert watch.check([]) == ""
    assert watch.check([]) == "it has 120,001 files, more than 120,000"


def test_disk_use_is_measured_without_following_links(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "large").write_bytes(bytes(1 << 20))
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / os.fsdecode(b"a\xff")).write_bytes(bytes(8192))
    os.link(folder / os.fsdecode(b"a\xff"), folder / "a" / "again")
    assert 8192 <= bytes_below([str(folder)]).used < 2 * 8192
    assert bytes_below([str(tmp_path / "none")]) == (0, True, 0)
    assert removed_bytes([0, os.getpid()]).used >= 0


def hides_in_a_deep_folder(folder: Path) -> None:
    here = os.open(folder, os.O_DIRECTORY)
    for _ in range(25):
        os.mkdir("x" * 200, dir_fd=here)
        here, above = os.open("x" * 200, os.O_DIRECTORY, dir_fd=here), here
        os.close(above)
    file = os.open("large", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(file, bytes(1 << 20))
    os.close(file)
    os.close(here)


def test_what_cannot_be_measured_counts_as_what_the_disk_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([50 << 30, 40 << 30, 20 << 30])
    monkeypatch.setattr(storage, "free_space", lambda _: (next(free), 1 << 20))
    watch = DiskWatch([str(tmp_path)], 25 << 30)
    hides_in_a_deep_folder(tmp_path)
    assert not bytes_below([str(tmp_path)]).is_complete
    assert watch.check([]) == ""
    assert watch.check([]) == "its files take 30.0 GiB, more than 25.0"


def test_an_agent_that_uses_up_the_inodes_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([10_000, 3_000, 1_000])
    monkeypatch.setattr(storage, "free_space", lambda _: (50 << 30, next(free)))
    watch = DiskWatch([str(tmp_path)], 0)
    assert [watch.check([]), watch.check([])] == ["", storage.FULL]


def test_a_measurement_ends_however_many_files_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent could open the same file millions of times, and fill the disk meanwhile."""
    looked = iter(range(1000))
    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: float(next(looked))))
    with TemporaryFile() as file:
        more = [os.dup(file.fileno()) for _ in range(100)]
        try:
            removed_bytes([os.getpid()] * 5)
        finally:
            for each in more:
                os.close(each)
    assert next(looked) < 10


def test_limits_are_what_can_be_spared_or_what_the_user_says(tmp_path: Path) -> None:
    found = Resources.of_machine(tmp_path, {"A2RL_AGENT_MEMORY_GIB": ""})
    assert found.memory == spare_memory()
    assert found.disk > 0
    assert found.processes == PROCESSES
    said = Resources.of_machine(tmp_path, {"A2RL_AGENT_MEMORY_GIB": "1.5", "A2RL_AGENT_CORES": "2"})
    assert (said.memory, said.cores) == (3 * GIB // 2, 2.0)


@pytest.mark.parametrize("limited", ["job", "job/step"])
def test_the_limit_of_a_unit_or_a_job_counts(limited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/cgroup": ["0::/job/step"],
        "/proc/self/mountinfo": [f"1 2 0:3 / {tmp_path} rw - cgroup2 cgroup2 rw"],
    }
    (tmp_path / "job/step").mkdir(parents=True)
    for group in ("job", "job/step"):
        (tmp_path / group / "memory.max").write_text("1073741824\n" if group == limited else "max\n")
    monkeypatch.setattr(cgroup_folders, "lines_of", files.__getitem__)
    assert spare_memory() == GIB - GIB // 4
    (tmp_path / limited / "memory.current").write_text(f"{GIB - 1000}\n")
    (tmp_path / limited / "memory.stat").write_text("anon 5\ninactive_file 30\nactive_file 20\n")
    assert cgroup_folders.free_memory() == 1050
    assert ModelSize(1050).lack_of_memory
    assert not ModelSize(800).lack_of_memory


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("DISK_GIB", text) for text in ("no number", "8GB", "8,5", "-4", "inf", "nan", "1e-10", "50000000000")),
        ("PROCESSES", "0.5"),
        ("PROCESSES", "1e19"),
        ("CORES", "0.001"),
    ],
)
def test_a_mistyped_limit_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"A2RL_AGENT_{name}={text} is not a number"):
        Resources.of_machine(tmp_path, {f"A2RL_AGENT_{name}": text})


def test_an_agent_that_goes_on_keeps_what_it_has_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "free_bytes", lambda _: 1 << 30)
    first, second = (Resources.of_machine(tmp_path, {}, used) for used in (0, 3 << 30))
    assert (first.disk, second.disk) == (1 << 29, (3 << 30) + (1 << 29))
    assert Resources.of_machine(tmp_path, {"A2RL_AGENT_DISK_GIB": "2"}, 3 << 30).disk == 2 << 30
