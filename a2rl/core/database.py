"""Settings shared by the SQLite files that several processes open at once: the ledger and the judge's answers."""

import sqlite3
import time

WAIT_FOR_LOCK_S = 30
RETRY_S = 0.02


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
