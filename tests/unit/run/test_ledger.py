"""Tests the ledger: no entry is lost, and no change goes unnoticed."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from a2rl.core.database import use_write_ahead_log
from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.run.events import AgentStarted, RunFailed, RunInterrupted
from a2rl.run.ledger import GENESIS, Ledger, as_row

COLUMNS = "seq, at, kind, body, previous, hash"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with five entries."""
    ledger = Ledger(tmp_path / "ledger.db")
    for attempt in range(1, 6):
        ledger.append(AgentStarted(attempt=attempt, elapsed_s=float(attempt)))
    return ledger


def tamper(ledger: Ledger, *statements: str) -> None:
    with closing(sqlite3.connect(ledger.path)) as database:
        for statement in ("DROP TRIGGER no_update", "DROP TRIGGER no_delete", *statements):
            database.execute(statement)
        database.commit()


def test_entries_come_back_as_they_were_appended_in_order(ledger: Ledger) -> None:
    entries = ledger.entries()
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.event for entry in entries] == [AgentStarted(attempt=n, elapsed_s=float(n)) for n in range(1, 6)]
    assert [entry.previous for entry in entries] == [GENESIS, *(entry.hash for entry in entries[:-1])]
    assert ledger.entries(after=3) == entries[3:]


def test_an_untouched_chain_verifies_to_its_head(ledger: Ledger) -> None:
    assert ledger.verify() == ledger.entries()[-1].hash


def test_events_are_found_by_kind(ledger: Ledger) -> None:
    ledger.append(RunInterrupted(stage="execute"))
    assert ledger.events(RunInterrupted) == [RunInterrupted(stage="execute")]
    assert len(ledger.events(AgentStarted)) == 5


def test_text_that_no_file_can_hold_is_replaced(ledger: Ledger) -> None:
    """JSON and names of files allow lone surrogates, and UTF-8 does not."""
    ledger.append(RunFailed(stage="execute", reason="a \ud800 of the agent"))
    assert ledger.events(RunFailed)[0].reason == "a ? of the agent"
    ledger.verify()


def test_a_missing_ledger_has_no_entries_and_does_not_verify(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none.db")
    assert ledger.entries() == []
    assert not ledger.path.exists()
    with pytest.raises(IntegrityError, match="there is no ledger"):
        ledger.verify()


@pytest.mark.parametrize(
    ("statements", "first_bad"),
    [
        (["""UPDATE events SET body = '{"attempt":9,"elapsed_s":3.0}' WHERE seq = 3"""], "entry 3"),
        (["UPDATE events SET at = at + 1 WHERE seq = 1"], "entry 1"),
        (["UPDATE events SET kind = 'run_interrupted', body = '{\"stage\":\"x\"}' WHERE seq = 2"], "entry 2"),
        (["UPDATE events SET hash = 'f' WHERE seq = 5"], "entry 5"),
        (["DELETE FROM events WHERE seq = 1"], "entry 1"),
        (["DELETE FROM events WHERE seq = 3"], "entry 3"),
        (
            ["DELETE FROM events WHERE seq = 3", "UPDATE events SET seq = 3 WHERE seq = 4",
             "UPDATE events SET seq = 4 WHERE seq = 5"],
            "entry 3",
        ),
        (
            ["UPDATE events SET seq = 99 WHERE seq = 2", "UPDATE events SET seq = 2 WHERE seq = 3",
             "UPDATE events SET seq = 3 WHERE seq = 99"],
            "entry 2",
        ),
        ([f"INSERT INTO events ({COLUMNS}) SELECT 6, at, kind, body, hash, 'made up' FROM events WHERE seq = 5"],
         "entry 6"),
        (
            ["UPDATE events SET seq = 6 WHERE seq = 5", "UPDATE events SET seq = 5 WHERE seq = 4",
             f"INSERT INTO events ({COLUMNS}) SELECT 4, at, kind, body, hash, 'made up' FROM events WHERE seq = 3"],
            "entry 4",
        ),
    ],
    ids=["edited body", "edited time", "edited kind", "edited hash", "first removed", "one removed",
         "removed and renumbered", "reordered", "appended by hand", "inserted"],
)  # fmt: skip
def test_tampering_breaks_the_chain_at_the_first_bad_entry(
    ledger: Ledger, statements: list[str], first_bad: str
) -> None:
    tamper(ledger, *statements)
    with pytest.raises(IntegrityError, match=first_bad):
        ledger.verify()


@pytest.mark.parametrize("statement", ["UPDATE events SET at = 0", "DELETE FROM events WHERE seq = 5"])
def test_updates_and_deletes_are_refused(ledger: Ledger, statement: str) -> None:
    before = ledger.entries()
    with closing(sqlite3.connect(ledger.path)) as database, pytest.raises(sqlite3.DatabaseError, match="append-only"):
        database.execute(statement)
    assert ledger.entries() == before


@pytest.mark.parametrize("body", ["{}", "not json", '{"attempt":"many","elapsed_s":1}', "[]"])
def test_an_unreadable_entry_is_one_line_and_no_stack_trace(ledger: Ledger, body: str) -> None:
    tamper(ledger, f"UPDATE events SET body = '{body}' WHERE seq = 2")
    with pytest.raises(IntegrityError) as refused:
        ledger.entries()
    assert "\n" not in str(refused.value)


def test_an_entry_of_an_unknown_kind_is_an_integrity_error(ledger: Ledger) -> None:
    tamper(ledger, "UPDATE events SET kind = 'from_the_future' WHERE seq = 2")
    with pytest.raises(IntegrityError, match="from_the_future"):
        ledger.entries()


def test_append_unless_adds_once(ledger: Ledger) -> None:
    event = RunInterrupted(stage="grade")
    assert ledger.append_unless(event, lambda _: True) is not None  # there is no event of this kind yet
    assert ledger.append_unless(event, lambda _: True) is None
    assert ledger.append_unless(event, lambda other: other.stage == "execute") is not None
    assert [entry.seq for entry in ledger.entries()] == list(range(1, 8))


def in_parallel(work: Callable[[int], None], threads: int) -> None:
    begin = threading.Barrier(threads)

    def one(number: int) -> None:
        begin.wait()
        work(number)

    workers = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def add_once(ledger: Ledger) -> None:
    ledger.append_unless(RunInterrupted(stage="x"), lambda _: True)


def test_many_threads_that_try_to_add_the_same_event_add_it_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    in_parallel(lambda _: add_once(ledger), threads=8)
    assert len(ledger.entries()) == 1


APPENDER = """
import sys, threading
from pathlib import Path
from a2rl.run.events import AgentStarted
from a2rl.run.ledger import Ledger

def work(thread):
    for number in range(4):
        Ledger(Path(sys.argv[1])).append(AgentStarted(attempt=int(sys.argv[2]) + 100 * thread + number, elapsed_s=0))

threads = [threading.Thread(target=work, args=(thread,)) for thread in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_processes_of_many_threads_append_at_once_without_loss(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "ledger.db"
    processes = [
        subprocess.Popen([sys.executable, "-c", APPENDER, str(path), str(first)], cwd=repository)
        for first in (10_000, 20_000)
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    attempts = {event.attempt for event in Ledger(path).events(AgentStarted)}
    assert attempts == {first + 100 * thread + n for first in (10_000, 20_000) for thread in range(3) for n in range(4)}
    assert [entry.seq for entry in Ledger(path).entries()] == list(range(1, 25))
    Ledger(path).verify()


def test_a_new_ledger_waits_for_the_process_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, check_same_thread=False, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=MEMORY")
        other.execute("BEGIN EXCLUSIVE")
        release = threading.Timer(0.3, other.execute, ["COMMIT"])
        release.start()
        Ledger(path).append(RunInterrupted(stage="x"))
        release.join()
    assert len(Ledger(path).entries()) == 1


def test_a_ledger_that_others_made_meanwhile_is_used_as_it_is(ledger: Ledger) -> None:
    with closing(sqlite3.connect(ledger.path)) as other, closing(sqlite3.connect(ledger.path)) as late:
        assert other.execute("SELECT count(*) FROM events").fetchone() == (5,)
        use_write_ahead_log(late, is_new=True)  # it was new when this process looked
        assert late.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_ledger_that_is_just_being_made_has_no_entries(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
    assert Ledger(tmp_path / "ledger.db").entries() == []


@pytest.mark.parametrize("use", ["entries", "verify", "append"])
def test_a_corrupt_file_is_an_integrity_error_of_one_line(tmp_path: Path, use: str) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"this was a ledger once " * 500)
    ledger = Ledger(path)
    with pytest.raises(IntegrityError, match="corrupt") as refused:
        ledger.append(RunInterrupted(stage="x")) if use == "append" else getattr(ledger, use)()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("seq", "at", "kind"),
    [(1 << 70, 0.0, "x"), (1, 1 << 70, "x"), (1, 10**400, "x"), (1, float("nan"), "x"), (1, 0.0, "\ud800"),
     (1, True, "x"), ("1", 0.0, "x")],
)  # fmt: skip
def test_what_no_ledger_can_hold_is_no_entry(seq: object, at: object, kind: str) -> None:
    with pytest.raises(IntegrityError, match="has a row that is not an entry"):
        as_row([seq, at, kind, "{}", GENESIS, "0"])


def test_a_ledger_with_a_page_overwritten_is_an_integrity_error(ledger: Ledger) -> None:
    for attempt in range(200):
        ledger.append(AgentStarted(attempt=attempt, elapsed_s=0))
    with closing(sqlite3.connect(ledger.path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = bytearray(ledger.path.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    ledger.path.write_bytes(bytes(raw))
    with pytest.raises(IntegrityError, match="corrupt"):
        ledger.verify()


def test_a_folder_that_is_not_there_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot be used"):
        Ledger(tmp_path / "absent" / "ledger.db").append(RunInterrupted(stage="x"))


def test_what_was_appended_is_there_after_the_writer_was_killed(tmp_path: Path, repository: Path) -> None:
    path = tmp_path / "ledger.db"
    script = (
        "import os, sys; from pathlib import Path\n"
        "from a2rl.run.events import RunInterrupted; from a2rl.run.ledger import Ledger\n"
        "Ledger(Path(sys.argv[1])).append(RunInterrupted(stage='x')); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], cwd=repository, check=False)
    assert Ledger(path).events(RunInterrupted) == [RunInterrupted(stage="x")]
