"""Tests the record of an agent's processes, with real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.event_log import EventLog
from a2rl.linux.process_tree import read_process
from a2rl.recording.processes import ProcessLog
from tests.run_maker import FIRST_THREAD_ENDS, wait_for

CHILD = """
import subprocess, sys
inner = [sys.executable, "-c", "import sys; f = open('data.txt'); g = open('out.bin', 'wb'); input()", "--steps", "3"]
child = subprocess.Popen(inner, stdin=subprocess.PIPE)
print("started", flush=True)
sys.stdin.readline()
child.communicate(b"\\n")
sys.stdin.readline()
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process with one child, which has two files open and ends when the first line is sent."""
    (tmp_path / "data.txt").write_text("x")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    process.stdout.close()


def rows(log: EventLog) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.path.read_text().splitlines()] if log.path.exists() else []


def test_processes_beyond_those_that_are_recorded_are_noted_once(
    tmp_path: Path, supervisor: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_LINES", "MAX_PROCESSES"):
        with monkeypatch.context() as patch:
            patch.setattr(f"a2rl.recording.processes.{limit}", 0)
            log = EventLog(tmp_path / f"{limit}.jsonl")
            processes = ProcessLog(log, supervisor.pid, tmp_path)
            while not log.path.exists():  # the child may not have its command yet
                processes.look(1.0)
            processes.look(1.0)
            assert [row["event"] for row in rows(log)] == ["full"]


def test_a_process_is_recorded_with_its_command_files_and_times(
    tmp_path: Path, supervisor: "subprocess.Popen[str]"
) -> None:
    log = EventLog(tmp_path / "processes.jsonl")
    processes = ProcessLog(log, supervisor.pid, tmp_path)

    def has_opened_its_files() -> bool:
        processes.look(100.0)
        return [bool(seen.read and seen.wrote) for seen in processes._running.values()] == [True]

    wait_for(has_opened_its_files)
    started = rows(log)[-1]
    assert started["event"] == "started"
    assert started["command"][-2:] == ["--steps", "3"]
    assert started["parent"] == supervisor.pid
    assert 0 <= started["started_s"] <= 100
    assert supervisor.stdin is not None
    supervisor.stdin.write("\n")
    supervisor.stdin.flush()

    def has_ended() -> bool:
        processes.look(130.0)
        return bool(rows(log)[-1]["event"] == "ended")

    wait_for(has_ended)
    ended = rows(log)[-1]
    assert (ended["pid"], ended["ended_s"]) == (started["pid"], 130.0)
    assert (ended["read"], ended["wrote"]) == (["data.txt"], ["out.bin"])


def test_a_process_whose_first_thread_has_ended_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("x")
    log = EventLog(tmp_path / "processes.jsonl")
    processes = ProcessLog(log, os.getpid(), tmp_path)
    command = [sys.executable, "-c", FIRST_THREAD_ENDS, "data.txt"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        try:
            wait_for(lambda: (found := read_process(process.pid)) is not None and found.state == "Z")
            processes.look(1.0)
            processes.close(2.0)
        finally:
            process.kill()
    started, ended = (row for row in rows(log) if row["pid"] == process.pid)
    assert started["command"][-1] == "data.txt"
    assert ended["read"] == ["data.txt"]


def test_what_still_runs_is_ended_when_the_record_is_closed(
    tmp_path: Path, supervisor: "subprocess.Popen[str]"
) -> None:
    log = EventLog(tmp_path / "processes.jsonl")
    processes = ProcessLog(log, supervisor.pid, tmp_path)

    def is_seen() -> bool:
        processes.look(1.0)
        return bool(processes._running)

    wait_for(is_seen)
    processes.close(2.0)
    assert [row["event"] for row in rows(log)][-1] == "ended"


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_OPEN"])
def test_files_that_are_not_recorded_are_told(
    tmp_path: Path, supervisor: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"a2rl.recording.processes.{limit}", 0)
    told: list[str] = []
    processes = ProcessLog(EventLog(tmp_path / "processes.jsonl"), supervisor.pid, tmp_path, told.append)

    def is_told() -> bool:
        processes.look(1.0)
        return bool(told)

    wait_for(is_told)
    assert "more than 0 files" in told[0]
    assert "full" not in [row["event"] for row in rows(processes._log)]


def test_a_supervisor_that_has_ended_has_no_processes(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "processes.jsonl")
    processes = ProcessLog(log, 2**22 + os.getpid(), tmp_path)
    processes.look(1.0)
    processes.close(2.0)
    assert rows(log) == []


def test_a_process_that_hides_its_files_is_noted(
    tmp_path: Path, supervisor: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose program may be executed but not read."""

    def refuse(_: str) -> None:
        raise PermissionError

    log = EventLog(tmp_path / "processes.jsonl")
    processes = ProcessLog(log, supervisor.pid, tmp_path)
    monkeypatch.setattr("os.scandir", refuse)

    def is_noted() -> bool:
        processes.look(1.0)
        return "full" in [row["event"] for row in rows(log)]

    wait_for(is_noted)
