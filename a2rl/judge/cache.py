"""Answers that were paid for, on disk: SQLite in WAL mode, so that several graders share one file.

An answer is kept under the digest of everything that it depends on: annotator, model, decoding and the whole request.
It is durable when `store` returns, so that a process that is killed loses none. Who asks for one claims it first, and
everybody else waits for the answer instead of paying for it again; a claim is renewed while its owner lives, and runs
out soon after the owner's end, so that nobody waits for the dead.

    with cache.answer(key, wait=closing.wait) as claim:
        reply = claim.reply or claim.keep(ask())
"""

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from a2rl.database import WAIT_FOR_LOCK_S, use_write_ahead_log
from a2rl.errors import InfrastructureError

LEASE_S = 10.0
"""How long a claim holds after it was last renewed."""
RENEW_S = 2.5
POLL_S = 0.05
TABLES = (
    "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, reply TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL, until REAL NOT NULL)",
)
_CLAIM = """\
INSERT INTO claims VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until
WHERE claims.until < ? OR claims.until > ?"""
"""Takes a key that nobody holds, or whose claim has run out, or is from a clock that was ahead."""


class Claim:
    """A key that this thread alone may ask about, or the reply that somebody got for it."""

    def __init__(self, reply: dict[str, Any] | None, keep: Callable[[dict[str, Any]], None]) -> None:
        self.reply = reply
        self._keep = keep

    def keep(self, reply: dict[str, Any]) -> None:
        """Stores the reply for good. Raises InfrastructureError: it cannot be stored."""
        self._keep(reply)


class AnswerCache:
    """Replies of endpoints by key; safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Raises InfrastructureError: it cannot be opened."""
        self._lock = threading.Lock()
        self._owner, self._held, self._closed = uuid.uuid4().hex, 0, threading.Event()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=WAIT_FOR_LOCK_S, check_same_thread=False)
            use_write_ahead_log(self._database)
            for table in TABLES:
                self._database.execute(table)
            self._database.commit()
        except (OSError, sqlite3.Error) as error:
            raise InfrastructureError(f"answers cannot be kept in {path}: {error}") from error
        self._renewal = threading.Thread(target=self._renew, name="claims", daemon=True)
        self._renewal.start()

    @contextmanager
    def answer(self, key: str, wait: Callable[[float], bool]) -> Iterator[Claim | None]:
        """The stored reply of a key, or leave to ask for it: then nobody else asks until the context is left.

        Args:
            key: of the question.
            wait: waits so many seconds; True: nobody waits for the answer any more, and the context gets None.

        Raises:
            InfrastructureError: the file cannot be read or written.
        """
        while True:
            claimed, reply = self._claim(key)
            if reply is not None or claimed:
                break
            if wait(POLL_S):
                yield None
                return
        try:
            yield Claim(reply, lambda kept: self.store(key, kept))
        finally:
            if claimed:
                self._release(key)

    def find(self, key: str) -> dict[str, Any] | None:
        """The reply stored under a key; none where what is stored cannot be read."""
        with self._transaction("read") as database:
            row = database.execute("SELECT reply FROM answers WHERE key = ?", (key,)).fetchone()
        try:
            reply = json.loads(row[0]) if row else None
        except (ValueError, RecursionError):
            return None
        return reply if isinstance(reply, dict) else None

    def store(self, key: str, reply: dict[str, Any]) -> None:
        """Keeps a reply; of two for one key the first stays."""
        with self._transaction("kept") as database:
            database.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, json.dumps(reply)))

    def _claim(self, key: str) -> tuple[bool, dict[str, Any] | None]:
        """Whether the key is ours to ask about, and else the reply if there is one."""
        if (reply := self.find(key)) is not None:
            return False, reply
        now = time.time()
        with self._transaction("claimed") as database:
            found = database.execute(_CLAIM, (key, self._owner, now + LEASE_S, now, now + 2 * LEASE_S)).rowcount
            self._held += found
        if not found:
            return False, None
        if (reply := self.find(key)) is not None:  # stored between the look and the claim
            self._release(key)
            return False, reply
        return True, None

    def _release(self, key: str) -> None:
        with self._transaction("released") as database:
            database.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (key, self._owner))
            self._held -= 1

    def _renew(self) -> None:
        """Says again and again that the owner lives."""
        while not self._closed.wait(RENEW_S):
            try:
                with self._transaction("renewed") as database:
                    if self._held:
                        until = time.time() + LEASE_S
                        database.execute("UPDATE claims SET until = ? WHERE owner = ?", (until, self._owner))
            except InfrastructureError:
                continue  # whoever stores an answer finds out, and says so

    @contextmanager
    def _transaction(self, done: str) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, self._database:
                yield self._database
        except sqlite3.Error as error:
            raise InfrastructureError(f"an answer cannot be {done}: {error}") from error

    def __enter__(self) -> "AnswerCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._renewal.join()
        self._database.close()
