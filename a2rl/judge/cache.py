"""Answers that were paid for, on disk: SQLite in WAL mode, so that several graders share one file.

An answer is kept under the digest of everything that it depends on: annotator, model, decoding and the whole request.
It is durable when `store` returns, so that a process that is killed loses none.
"""

import json
import sqlite3
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from a2rl.database import WAIT_FOR_LOCK_S, use_write_ahead_log
from a2rl.errors import InfrastructureError


class AnswerCache:
    """Replies of endpoints by key; safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        """Raises InfrastructureError: it cannot be opened."""
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=WAIT_FOR_LOCK_S, check_same_thread=False)
            use_write_ahead_log(self._database)
            self._database.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, reply TEXT NOT NULL)")
            self._database.commit()
        except (OSError, sqlite3.Error) as error:
            raise InfrastructureError(f"answers cannot be kept in {path}: {error}") from error

    def find(self, key: str) -> dict[str, Any] | None:
        """The reply stored under a key."""
        with self._lock:
            row = self._database.execute("SELECT reply FROM answers WHERE key = ?", (key,)).fetchone()
        return dict(json.loads(row[0])) if row else None

    def store(self, key: str, reply: dict[str, Any]) -> None:
        """Keeps a reply; of two for one key the first stays."""
        try:
            with self._lock, self._database:
                self._database.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, json.dumps(reply)))
        except sqlite3.Error as error:
            raise InfrastructureError(f"an answer cannot be kept: {error}") from error

    def __enter__(self) -> "AnswerCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
