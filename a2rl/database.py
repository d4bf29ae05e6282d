"""What the SQLite files that several processes open at once have in common: the ledger, the judge's answers."""

import sqlite3
import time

WAIT_FOR_LOCK_S = 30
RETRY_S = 0.02


def use_write_ahead_log(database: sqlite3.Connection) -> None:
    """Lets others read while one writes.

    Only this waits for whoever has the file just now: SQLite gives up the switch at once, whatever its timeout, where
    two make a new file at the same time.

    Raises:
        sqlite3.OperationalError: not in WAIT_FOR_LOCK_S.
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
