"""SQLite files that several processes open at once, such as the ledger.

SQLite acts on what lies beside a database: it deletes the file that a left journal names, and empties a linked index.
So a process opens only the databases that it writes itself, and only if nothing strange lies beside them. All others
are read from a private copy of their bytes, whoever made them; this also works on a file system that is read-only. The
schema has nothing but what is ours: a trigger or a view of somebody else never runs.
"""

import contextlib
import fcntl
import os
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

WAIT_FOR_LOCK_S = 30
RETRY_S = 0.02
READ_TIMEOUT_S = 60.0
"""How long it may take to read a database, however it is built."""
MAX_BYTES = 1 << 30
_SHARED_FIRST, _SHARED_BYTES = 0x40000002, 510
"""Where SQLite locks a file that it reads: https://sqlite.org/src/file/src/os.h."""
_STEPS = 10_000
_written: set[str] = set()
_copying = threading.Lock()
"""A copy closes the file, and with it the locks that SQLite has on it in this process."""
os.register_at_fork(before=_copying.acquire, after_in_parent=_copying.release, after_in_child=_copying.release)


@contextmanager
def open_database(path: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """Opens a database for writing, whose commits are durable, without a transaction; closes it at the end.

    Args:
        path: The file, which is created if it does not exist.
        schema: Statements that create what is missing.

    Raises:
        sqlite3.Error: It cannot be opened, it is not one of ours, or what the caller does fails.
    """
    with _copying:
        _written.add(os.path.realpath(path))
    is_new = not path.exists() or not path.stat().st_size
    _check_place(path)
    with closing(sqlite3.connect(path, timeout=WAIT_FOR_LOCK_S, isolation_level=None)) as database:
        database.execute("PRAGMA trusted_schema=OFF")
        use_write_ahead_log(database, is_new)
        database.execute("PRAGMA synchronous=FULL")
        _check_schema(database, schema)
        database.executescript(schema)
        yield database


@contextmanager
def read_database(path: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """Opens a database for reading, whoever wrote it, and whether or not others write it meanwhile.

    Raises:
        sqlite3.Error: It cannot be read, is not one of ours, or takes too long to read.
    """
    if os.path.realpath(path) in _written:
        with open_database(path, schema) as database:
            yield database
        return
    with tempfile.TemporaryDirectory(prefix="a2rl-read-") as folder:
        copy = Path(folder, "copy.db")
        try:
            _copy(path, copy)
        except OSError as error:
            raise sqlite3.OperationalError(error.strerror) from error
        with closing(sqlite3.connect(copy, isolation_level=None)) as database:
            deadline = time.monotonic() + READ_TIMEOUT_S
            database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            database.execute("PRAGMA trusted_schema=OFF")
            database.execute("PRAGMA cell_size_check=ON")
            _check_schema(database, schema)
            database.executescript(schema)  # its writer may just have made the file
            yield database


def rows_of(database: sqlite3.Connection, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Returns the rows of a query, which have no more bytes than the file: pages that occur twice would never end.

    Raises:
        sqlite3.DatabaseError: They have more.
    """
    left = int(database.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0])
    rows = []
    for row in database.execute(query, values):
        left -= 1 + sum(len(each) for each in row if isinstance(each, str | bytes))
        if left < 0:
            raise sqlite3.DatabaseError("it has more rows than the file can hold")
        rows.append(row)
    return rows


def copy_database(source: Path, target: Path, schema: str) -> None:
    """Writes the rows of a database into a new one. Raises the same errors as `read_database`."""
    with read_database(source, schema) as known, open_database(target, schema) as new:
        for (table,) in known.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            rows = rows_of(known, f"SELECT * FROM {table}")
            new.execute("BEGIN")
            new.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})" if rows else "", rows)
            new.execute("COMMIT")


def use_write_ahead_log(database: sqlite3.Connection, is_new: bool = False) -> None:
    """Switches a database to WAL mode, in which others can read while one process writes.

    The switch is repeated while another process holds a lock on the file. SQLite's own timeout does not help: if two
    processes create the file at the same time, SQLite fails at once. What another process has switched stays as it is:
    two that both tried to leave WAL mode would wait for each other.

    Args:
        is_new: Whether it has no content yet. The journal of its first page is then in memory, so that a database of
            ours never has a journal beside it.

    Raises:
        sqlite3.OperationalError: The file was still locked after WAIT_FOR_LOCK_S seconds.
    """
    deadline = time.monotonic() + WAIT_FOR_LOCK_S
    while True:
        try:
            (mode,) = database.execute("PRAGMA journal_mode").fetchone()
            if mode == "wal":
                return
            if is_new:
                database.execute("PRAGMA journal_mode=MEMORY")
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return


def _check_place(path: Path) -> None:
    """Refuses a file beside which lies what SQLite would act on."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            status = path.with_name(path.name + suffix).lstat()
            if suffix == "-journal" or not stat.S_ISREG(status.st_mode) or (suffix and status.st_nlink > 1):
                raise sqlite3.DatabaseError(f"{path.name}{suffix} is not a file that a2rl makes: move it away")


def _check_schema(database: sqlite3.Connection, schema: str) -> None:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(schema)
        if not {*rows_of(database, query)} <= {*ours.execute(query)}:
            raise sqlite3.DatabaseError("it has other tables or triggers than a2rl makes")


def _copy(path: Path, copy: Path) -> None:
    """Copies a database with the transactions in its write-ahead log.

    With the lock that SQLite's own readers take, no process moves transactions from the log into the file meanwhile.
    """
    with _copying, _opened(path) as file:
        deadline = time.monotonic() + WAIT_FOR_LOCK_S
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, _SHARED_BYTES, _SHARED_FIRST)
            except (BlockingIOError, PermissionError) as error:
                if time.monotonic() > deadline:
                    raise sqlite3.OperationalError("database is locked") from error
                time.sleep(RETRY_S)
            except OSError:  # a file system without locks
                break
            else:
                break
        with contextlib.suppress(FileNotFoundError), _opened(path.with_name(f"{path.name}-wal")) as log:
            _copy_bytes(log, copy.with_name(f"{copy.name}-wal"))
        _copy_bytes(file, copy)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise sqlite3.DatabaseError(f"{path.name} is not a file, or has more than {MAX_BYTES:,} bytes")
        yield descriptor
    finally:
        os.close(descriptor)


def _copy_bytes(source: int, target: Path) -> None:
    with target.open("xb") as file:
        place = 0
        while place < MAX_BYTES and (block := os.pread(source, 1 << 20, place)):
            place += file.write(block)
