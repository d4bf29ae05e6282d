"""A cache of paid answers on disk: SQLite in WAL mode, so that several graders can share one file.

An answer is stored under the digest of everything that it depends on: annotator, model, decoding and the request. It is
durable when `store` returns, so a killed process loses none. Whoever needs an answer claims its key first; all others
wait for the answer instead of paying for it again. A claim is a kernel lock on a file, so it ends with its owner.

    with cache.claimed(key, wait=time.sleep) as reply:
        if reply is None:
            cache.store(key, ask())
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from a2rl.core.database import WAIT_FOR_LOCK_S, use_write_ahead_log
from a2rl.core.errors import InfrastructureError
from a2rl.core.locks import FileLock

POLL_INTERVAL_S = 0.05
TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, reply TEXT NOT NULL)"


class AnswerCache(AbstractContextManager["AnswerCache"]):
    """Replies of endpoints by key; safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file, and a folder for claims beside it.

        Raises:
            InfrastructureError: It cannot be opened.
        """
        self._lock, self._claims = threading.Lock(), path.with_name(f"{path.name}-claims")
        try:
            self._claims.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=WAIT_FOR_LOCK_S, check_same_thread=False)
            use_write_ahead_log(self._database)
            self._database.execute(TABLE)
            self._database.commit()
        except (OSError, sqlite3.Error) as error:
            raise InfrastructureError(f"answers cannot be stored in {path}: {error}") from error

    @contextmanager
    def claimed(self, key: str, wait: Callable[[float], object]) -> Iterator[dict[str, Any] | None]:
        """Provides the stored reply of a key; None is the exclusive right to ask for it within the context.

        Args:
            wait: Waits for so many seconds while another owner asks, or raises an error to wait no longer.

        Raises:
            InfrastructureError: The file cannot be read or written.
        """
        lock, is_claimed = FileLock(self._claims / key), False
        try:
            while (reply := self.find(key)) is None and not (is_claimed := lock.take()):
                wait(POLL_INTERVAL_S)
            # Between the first look-up and the claim, another owner may have stored it.
            yield self.find(key) if is_claimed else reply
        finally:
            if is_claimed:
                with suppress(OSError):
                    (self._claims / key).unlink()  # who waits for the removed file opens a new one
            lock.release()

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
        """Stores a reply permanently; of two replies for one key, the first stays."""
        with self._transaction("kept") as database:
            database.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, json.dumps(reply)))

    @contextmanager
    def _transaction(self, done: str) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, self._database:
                yield self._database
        except sqlite3.Error as error:
            raise InfrastructureError(f"an answer cannot be {done}: {error}") from error

    def __exit__(self, *_: object) -> None:
        self._database.close()
