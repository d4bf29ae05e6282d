"""Tests detecting whether an agent computes, by the CPU time of its processes, fake and real."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from a2rl.execution.compute import TreeLoad, cgroup_cpu_s, computed
from a2rl.linux.process_tree import MAX_PROCESSES, TICKS_PER_S

SUPERVISOR, AGENT, WORKER = 100, 101, 102


class Proc:
    """A fake /proc whose processes the test controls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parents = folder, dict[int, int]()
        self.add(SUPERVISOR, parent=1)
        self.add(AGENT, parent=SUPERVISOR)
        self.load = self.load_with()
        self.before = self.load.sample()

    def add(
        self, pid: int, parent: int, own_s: float = 0.0, reaped_s: float = 0.0, state: str = "S", name: str = "x"
    ) -> None:
        fields = [state, str(parent), *["0"] * 9, str(int(own_s * TICKS_PER_S)), "0"]
        line = " ".join([*fields, str(int(reaped_s * TICKS_PER_S)), "0", "20", "0", "1", "0", "5000", "0"])
        self.parents[pid] = parent
        (self.folder / str(pid)).mkdir(exist_ok=True)
        (self.folder / str(pid) / "stat").write_bytes(
            f"{pid} (".encode() + name.encode("latin-1") + f") {line}".encode()
        )

    def load_with(self, gpus: Callable[[], set[int]] = set, groups: Callable[[], list[Path]] = list) -> TreeLoad:
        return TreeLoad(SUPERVISOR, groups, gpus, self.folder, self.below)

    def below(self, root: int) -> Iterator[int]:
        for pid, parent in self.parents.items():
            if parent == root:
                yield pid
                yield from self.below(pid)

    def end(self, pid: int) -> None:
        (self.folder / str(pid) / "stat").unlink()

    def computed(self, seconds: float = 1.0) -> bool:
        before, self.before = self.before, self.load.sample()
        return computed(before, self.before, seconds)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_an_agent_that_sleeps_does_not_compute(proc: Proc) -> None:
    assert not proc.computed()


def test_one_that_uses_a_little_does_not_either(proc: Proc) -> None:
    proc.add(AGENT, SUPERVISOR, own_s=0.05)
    assert not proc.computed()


def test_one_that_uses_a_share_of_a_core_does(proc: Proc) -> None:
    proc.add(AGENT, SUPERVISOR, own_s=0.3)
    assert proc.computed()


def test_what_any_process_below_it_uses_counts(proc: Proc) -> None:
    proc.add(WORKER, AGENT, own_s=0.3)
    assert proc.computed()


def test_a_child_that_came_and_went_counts_through_its_parent(proc: Proc) -> None:
    proc.add(AGENT, SUPERVISOR, reaped_s=0.4)
    assert proc.computed()


def test_a_detached_child_counts_through_its_supervisor(proc: Proc) -> None:
    """The supervisor reaped it."""
    proc.add(SUPERVISOR, 1, reaped_s=0.4)
    assert proc.computed()


def test_what_the_supervisor_itself_uses_is_the_pipelines(proc: Proc) -> None:
    proc.add(SUPERVISOR, 1, own_s=9.0)
    assert not proc.computed()


def test_what_runs_on_a_processor_now_computes(proc: Proc) -> None:
    """However little time it shows: in a chain of children, for example, each lives for a few milliseconds."""
    proc.add(WORKER, AGENT, state="R")
    assert proc.computed()


def test_time_does_not_run_backwards_when_a_worker_ends(proc: Proc) -> None:
    proc.add(WORKER, AGENT, own_s=50)
    proc.computed()
    proc.end(WORKER)
    assert not proc.computed()
    proc.add(AGENT, SUPERVISOR, own_s=0.3)
    assert proc.computed()


def test_other_processes_of_the_machine_are_none_of_its_business(proc: Proc) -> None:
    proc.add(500, 1, own_s=100, state="R")
    assert not proc.computed()


def test_names_that_imitate_fields_or_are_no_text_change_nothing(proc: Proc) -> None:
    for name in (") R 1 1 1 999999 999999", "\xff\xfe", "a\nb", ""):
        proc.add(AGENT, SUPERVISOR, name=name)
        assert not proc.computed()


def test_a_cgroups_figure_counts_where_there_is_one(proc: Proc, tmp_path: Path) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 5\n")
    load = proc.load_with(groups=lambda: [tmp_path, group])
    before = load.sample()
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 5\n")
    assert computed(before, load.sample(), 1.0)
    assert cgroup_cpu_s(tmp_path) is None
    (tmp_path / "cpuacct.usage").write_text("2500000000\n")
    assert cgroup_cpu_s(tmp_path) == 2.5


def test_more_processes_than_can_be_looked_at_compute(proc: Proc) -> None:
    proc.load = TreeLoad(
        SUPERVISOR, proc=proc.folder, below=lambda _: iter(range(10_000_000, 10_000_000 + MAX_PROCESSES))
    )
    assert proc.load.sample().is_running


def test_a_process_that_uses_a_gpu_computes_without_cpu_time(proc: Proc) -> None:
    proc.load = proc.load_with(gpus=lambda: {AGENT})
    assert proc.computed()
    proc.load = proc.load_with(gpus=lambda: {999})
    assert not proc.computed()


# Children of 20 ms that nobody waits for and that the kernel reaps without a trace.
CHAIN = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        end = time.monotonic() + 0.02
        while time.monotonic() < end: pass
        os._exit(0)
    time.sleep(0.02)
"""


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", request.param]) as process:
        time.sleep(0.5)  # to start
        yield process.pid
        process.kill()


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", [CHAIN], indirect=True)
def test_real_children_that_leave_no_trace_are_seen_all_the_same() -> None:
    load, verdicts = TreeLoad(os.getpid()), []
    before = load.sample()
    for turn in range(20):
        time.sleep(0.05 + 0.01 * (turn % 7))
        after = load.sample()
        verdicts.append(computed(before, after, 0.08))
        before = after
    assert sum(verdicts) >= 10


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize("child", ["import time; time.sleep(60)"], indirect=True)
def test_a_real_process_that_waits_is_idle() -> None:
    load = TreeLoad(os.getpid())
    before = load.sample()
    time.sleep(0.3)
    assert not computed(before, load.sample(), 0.3)
