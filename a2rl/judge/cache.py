"""A cache of paid answers on disk: SQLite in WAL mode, so that several graders can share one file.

An answer is stored under the digest of everything that it depends on: annotator, model, decoding and the request. It is
durable when `store` returns, so a killed process loses none. Whoever needs an answer claims its key first; all others
wait for the answer instead of paying for it again. A claim is renewed while its owner lives, and expires soon after the
owner's end.

    with cache.answer(key, wait=closing.wait) as claim:
        reply = claim.reply or claim.keep(ask())

No library: diskcache has no claims that expire with their owner.
"""

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.database import WAIT_FOR_LOCK_S, use_write_ahead_log
from a2rl.core.errors import InfrastructureError

LEASE_S = 10.0
"""How long a claim is valid after its last renewal."""
RENEW_INTERVAL_S = 2.5
POLL_INTERVAL_S = 0.05
TABLES = (
    "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, reply TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL, until REAL NOT NULL)",
)
_CLAIM = """\
INSERT INTO claims VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until
WHERE claims.until < ? OR claims.until > ?"""
"""Claims a key that is free, whose claim has expired, or whose claim was made by a clock that was ahead."""


class Claim(NamedTuple):
    """Either the stored reply of a key, or the exclusive right to ask for it."""

    reply: dict[str, Any] | None
    keep: Callable[[dict[str, Any]], None]
    """Stores the reply permanently. Raises InfrastructureError if it cannot be stored."""


class AnswerCache(AbstractContextManager["AnswerCache"]):
    """Replies of endpoints by key; safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file.

        Raises:
            InfrastructureError: It cannot be opened.
        """
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
            raise InfrastructureError(f"answers cannot be stored in {path}: {error}") from error
        self._renewal = threading.Thread(target=self._renew, name="claims", daemon=True)
        self._renewal.start()

    @contextmanager
    def answer(self, key: str, wait: Callable[[float], bool]) -> Iterator[Claim | None]:
        """Provides the stored reply of a key, or a claim to ask for it, which excludes others within the context.

        Args:
            wait: Waits for so many seconds; returns True if the caller is closing, and the context then gets None.

        Raises:
            InfrastructureError: The file cannot be read or written.
        """
        while True:
            claimed, reply = self._claim(key)
            if reply is not None or claimed:
                break
            if wait(POLL_INTERVAL_S):
                yield None
                return
        try:
            yield Claim(reply, partial(self.store, key))
        finally:
            if claimed:
                self._release(key)

    def find(self, key: str) -> dict[str, Any] | None:
        """Returns the reply stored under a key, or None if there is none that can be read."""
        with self._transaction("read") as database:
            row = database.execute("SELECT reply FROM answers WHERE key = ?", (key,)).fetchone()
        try:
            reply = json.loads(row[0]) if row else None
        except (ValueError, RecursionError):
            return None
        return reply if isinstance(reply, dict) else None

    def store(self, key: str, reply: dict[str, Any]) -> None:
        """Stores a reply; of two replies for one key, the first stays."""
        with self._transaction("kept") as database:
            database.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, json.dumps(reply)))

    def _claim(self, key: str) -> tuple[bool, dict[str, Any] | None]:
        """Returns whether the key was claimed and, if not, the stored reply if there is one."""
        if (reply := self.find(key)) is not None:
            return False, reply
        now = time.time()
        with self._transaction("claimed") as database:
            found = database.execute(_CLAIM, (key, self._owner, now + LEASE_S, now, now + 2 * LEASE_S)).rowcount
            self._held += found
        if not found:
            return False, None
        if (reply := self.find(key)) is not None:  # stored between the first look-up and the claim
            self._release(key)
            return False, reply
        return True, None

    def _release(self, key: str) -> None:
        with self._transaction("released") as database:
            database.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (key, self._owner))
            self._held -= 1

    def _renew(self) -> None:
        """Renews the claims of this process periodically."""
        while not self._closed.wait(RENEW_INTERVAL_S):
            try:
                with self._transaction("renewed") as database:
                    if self._held:
                        until = time.time() + LEASE_S
                        database.execute("UPDATE claims SET until = ? WHERE owner = ?", (until, self._owner))
            except InfrastructureError:
                continue  # the next attempt to store an answer reports it

    @contextmanager
    def _transaction(self, done: str) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, self._database:
                yield self._database
        except sqlite3.Error as error:
            raise InfrastructureError(f"an answer cannot be {done}: {error}") from error

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._renewal.join()
        self._database.close()
