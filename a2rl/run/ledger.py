"""The ledger: the append-only, hash-chained record of a run's events, in SQLite (WAL).

Every entry's hash covers its content and the previous hash, so that an edited, removed or reordered entry breaks the
chain. Triggers reject updates and deletes. Several processes may append concurrently, because each append is one
transaction. We wrote the chain ourselves because an existing ledger would be a server, and the agent must not be able
to reach one.

    ledger = Ledger(run.ledger_path)
    ledger.append(AgentStarted(elapsed_s=0.0, attempt=1))
    head = ledger.verify()
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from a2rl.core.database import open_database, read_database, rows_of
from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.core.files import canonical_json, digest_of
from a2rl.core.model_text import encodable
from a2rl.core.secrets import scrub
from a2rl.run.events import EVENTS, Event, Graded

GENESIS = "0" * 64
LARGEST = 1 << 63
"""SQLite stores smaller numbers."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE
) STRICT;
CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'append-only'); END;
CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'append-only'); END;
"""
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the ledger."""

    seq: int
    at: float
    """Wall-clock time in Unix seconds."""
    event: Event
    previous: str
    hash: str


class Row(NamedTuple):
    """An entry as it is stored, with its event as the text that the hash covers."""

    seq: int
    at: float
    kind: str
    body: str
    previous: str
    hash: str


class Ledger:
    """Appends and reads events. Every call opens the file, so instances can be shared by threads and forks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: Event) -> Entry:
        """Appends one event; it is durable when this returns."""
        with self._transaction() as database:
            return _insert(database, event)

    def append_unless(self, event: E, exists: Callable[[Any], bool]) -> Entry | None:
        """Appends the event unless an earlier event of its kind satisfies `exists`, in one transaction.

        Returns:
            The new entry; None if such an event exists.
        """
        with self._transaction() as database:
            rows = database.execute("SELECT * FROM events WHERE kind = ? ORDER BY seq", (event.kind,)).fetchall()
            if any(exists(_parse(row).event) for row in rows):
                return None
            return _insert(database, event)

    def append_next(self, choose: Callable[[list[Entry]], E]) -> E:
        """Appends the event that `choose` returns for all entries so far, in one transaction.

        An exception from `choose` is passed on, and nothing is appended.
        """
        with self._transaction() as database:
            rows = database.execute("SELECT * FROM events ORDER BY seq").fetchall()
            event = choose([_parse(row) for row in rows])
            _insert(database, event)
            return event

    def entries(self, after: int = 0) -> list[Entry]:
        """Returns all entries with a sequence number above `after`, in order; none if there is no ledger yet."""
        return [_parse(row) for row in self.rows(after)]

    def rows(self, after: int = 0) -> list[Row]:
        """Returns the same entries as they are stored."""
        if not self.path.exists():
            return []
        with self._errors(), read_database(self.path, SCHEMA) as database:
            rows = rows_of(database, "SELECT * FROM events WHERE seq > ? ORDER BY seq", after)
        return [as_row(row) for row in rows]

    def restore(self, rows: Iterable[Row]) -> None:
        """Writes stored entries into a new ledger, as they are; `verify` then says whether they are a chain.

        Raises:
            IntegrityError: Two of them have the same number or hash.
        """
        with self._transaction() as database:
            database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)

    def events(self, kind: type[E]) -> list[E]:
        """Returns the events of one kind, in order."""
        return events_of(self.entries(), kind)

    def grades(self) -> dict[str, Graded]:
        """Returns the grade of each graded checkpoint by the digest of its weights."""
        return grades_among(self.entries())

    def verify(self) -> str:
        """Recomputes the hash chain.

        Returns:
            The head of the chain (the last hash).

        Raises:
            IntegrityError: An entry was edited, removed, inserted or reordered; the message names the first bad one.
        """
        if not self.path.exists():
            raise IntegrityError(f"{self.path}: there is no ledger")
        previous = GENESIS
        for expected, (seq, at, kind, body, claimed_previous, claimed_hash) in enumerate(self.rows(), start=1):
            if seq != expected or claimed_previous != previous:
                raise IntegrityError(
                    f"{self.path}: the chain breaks at entry {expected}: one is missing or out of order"
                )
            if chain_hash(seq, at, kind, body, previous) != claimed_hash:
                raise IntegrityError(f"{self.path}: entry {seq} ({kind}) was changed after it was written")
            previous = claimed_hash
        return previous

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise InfrastructureError(
                f"the ledger {self.path} cannot be used: {error}; check the disk, which may be full, and resume"
            ) from error
        except sqlite3.DatabaseError as error:
            raise IntegrityError(
                f"the ledger {self.path} is corrupt ({error}); restore it from a copy, or start a new run"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Opens a write transaction, which is committed on exit. After an exception, closing the connection rolls it
        back."""
        with self._errors(), open_database(self.path, SCHEMA) as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")


def _insert(database: sqlite3.Connection, event: Event) -> Entry:
    """Adds the event as the last entry of the chain."""
    last = database.execute("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    seq, previous = (last[0] + 1, last[1]) if last else (1, GENESIS)
    at, body = time.time(), encodable(scrub(canonical_json(event.model_dump(mode="json"))))
    entry_hash = chain_hash(seq, at, event.kind, body, previous)
    database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (seq, at, event.kind, body, previous, entry_hash))
    return Entry(seq, at, event, previous, entry_hash)


def as_row(values: Sequence[Any]) -> Row:
    """Returns the row of these values, which anybody may have written.

    Raises:
        IntegrityError: They are not those of an entry.
    """
    kinds = [type(value) for value in values]
    if kinds in ([int, float, str, str, str, str], [int, int, str, str, str, str]):
        row = Row(*values)
        with suppress(UnicodeEncodeError):
            "".join(row[2:]).encode()
            if abs(row.seq) < LARGEST and abs(row.at) < LARGEST:
                return row
    raise IntegrityError(f"the ledger has a row that is not an entry: {str(values)[:100]}")


def events_of(entries: Iterable[Entry], kind: type[E]) -> list[E]:
    """Returns the events of one kind in these entries, in order."""
    return [entry.event for entry in entries if isinstance(entry.event, kind)]


def grades_among(entries: Iterable[Entry]) -> dict[str, Graded]:
    """Returns the grade of each checkpoint that is graded in these entries, by the digest of its weights."""
    return {event.weights_digest: event for event in events_of(entries, Graded)}


def chain_hash(seq: int, at: float, kind: str, body: str, previous: str) -> str:
    """Returns the hash of an entry."""
    return digest_of([seq, at, kind, body, previous])


def _parse(row: Row) -> Entry:
    seq, at, kind, body, previous, entry_hash = row
    if kind not in EVENTS:
        raise IntegrityError(f"entry {seq} of the ledger has an unknown kind {kind!r}: written by a newer version?")
    try:
        event = EVENTS[kind].model_validate(json.loads(body))
    except (ValueError, RecursionError) as error:  # json and pydantic both raise the first
        raise IntegrityError(
            f"entry {seq} of the ledger ({kind}) cannot be read: it was changed after it was written"
        ) from error
    return Entry(seq, at, event, previous, entry_hash)
