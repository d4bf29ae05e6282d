"""What a signer remembers: for each run the last head that it signed. It signs nothing else than a continuation of it.

So whoever rewrites a ledger cannot have it signed again. The signer computes the hashes itself, from the entries.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from a2rl.anchor.signature import Head
from a2rl.core.database import open_database
from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.run.ledger import GENESIS, Row, chain_hash

SCHEMA = "CREATE TABLE IF NOT EXISTS heads (run TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash TEXT NOT NULL) STRICT"
EMPTY = Head(seq=0, hash=GENESIS)
"""The head of a ledger without entries."""


class SignedHistory:
    """The last signed head of each run, in an SQLite file. Instances can be shared by threads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, key: Path) -> "SignedHistory":
        """Returns the history of a key, which is in the file `<key>.history.db`."""
        return cls(key.with_name(key.name + ".history.db"))

    def head(self, run_id: str) -> Head:
        """Returns the last signed head of a run; `EMPTY` if there is none."""
        with self._connect() as database:
            return _head(database, run_id)

    def known(self, run_id: str, rows: Sequence[Row]) -> Head:
        """Returns the last signed head of a run with these entries; `EMPTY` if there is none.

        Raises:
            IntegrityError: The head is not in the ledger.
        """
        head = self.head(run_id)
        if head.seq > len(rows) or (head.seq and rows[head.seq - 1].hash != head.hash):
            raise IntegrityError(
                f"the signer has signed another history of run {run_id}, up to entry {head.seq}: its ledger was "
                "rewritten or cut off"
            )
        return head

    def extend(self, run_id: str, rows: Sequence[Row]) -> Head:
        """Remembers the head after these entries; it is durable when this returns.

        Raises:
            IntegrityError: The entries do not continue the last signed head of the run.
        """
        with self._connect() as database:
            database.execute("BEGIN IMMEDIATE")
            head = _continued(_head(database, run_id), rows)
            database.execute("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", (run_id, head.seq, head.hash))
            database.execute("COMMIT")
            return head

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            with open_database(self.path, SCHEMA) as database:
                yield database
        except sqlite3.Error as error:
            raise InfrastructureError(f"the signer's history {self.path} cannot be used: {error}") from error


def _head(database: sqlite3.Connection, run_id: str) -> Head:
    row = database.execute("SELECT seq, hash FROM heads WHERE run = ?", (run_id,)).fetchone()
    return Head(seq=row[0], hash=row[1]) if row else EMPTY


def _continued(head: Head, rows: Sequence[Row]) -> Head:
    """Returns the head after these entries, whose claimed hashes are ignored."""
    for row in rows:
        if row.seq != head.seq + 1 or row.previous != head.hash:
            raise IntegrityError(
                f"entry {row.seq} does not continue entry {head.seq}, which was signed: the ledger was rewritten"
            )
        head = Head(seq=row.seq, hash=chain_hash(row.seq, row.at, row.kind, row.body, row.previous))
    if head == EMPTY:
        raise IntegrityError("a ledger without entries has no head to sign")
    return head
