"""SQLite files that several processes open at once, such as the ledger."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

WAIT_FOR_LOCK_S = 30
RETRY_S = 0.02


@contextmanager
def open_database(path: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """Opens a database, whose commits are durable, without a transaction; closes it at the end.

    Args:
        path: The file, which is created if it does not exist.
        schema: Statements that create what is missing.

    Raises:
        sqlite3.Error: It cannot be opened, or what the caller does fails.
    """
    with closing(sqlite3.connect(path, timeout=WAIT_FOR_LOCK_S, isolation_level=None)) as database:
        use_write_ahead_log(database)
        database.execute("PRAGMA synchronous=FULL")
        database.executescript(schema)
        yield database


def use_write_ahead_log(database: sqlite3.Connection) -> None:
    """Switches a database to WAL mode, in which others can read while one process writes.

    The switch is repeated while another process holds a lock on the file. SQLite's own timeout does not help: if two
    processes create the file at the same time, SQLite fails at once.

    Raises:
        sqlite3.OperationalError: The file was still locked after WAIT_FOR_LOCK_S seconds.
    """
    deadline = time.monotonic() + WAIT_FOR_LOCK_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return
