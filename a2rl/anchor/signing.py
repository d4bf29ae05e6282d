"""Signs the heads of ledgers with a local key, and keeps the signatures of a run up to date with its ledger.

The signer remembers for each run the last head that it signed, and signs nothing else than a continuation of it. So
whoever rewrites a ledger cannot have it signed again. The signer computes the hashes itself, from the entries.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from a2rl.anchor.params import AnchorParams
from a2rl.anchor.signatures import (
    LATE_S,
    SKEW_S,
    Head,
    HeadSignature,
    SigningKey,
    add_signature,
    drop_half_line,
    load_public_key,
    read_signatures,
)
from a2rl.core.database import open_database
from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.core.locks import file_lock
from a2rl.run.directory import RunDir
from a2rl.run.ledger import GENESIS, Row, chain_hash
from a2rl.run.names import last_stored

SCHEMA = "CREATE TABLE IF NOT EXISTS heads (run TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash TEXT NOT NULL) STRICT"
EMPTY = Head(seq=0, hash=GENESIS)
"""The head of a ledger without entries."""
LOCK = ".signing.lock"
LOCK_TIMEOUT_S = 30.0


class SignedHistory:
    """The last signed head of each run, in an SQLite file. Instances can be shared by threads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, key: Path) -> "SignedHistory":
        """Returns the history of a key, which is in the file `<key>.history.db`."""
        return cls(key.with_name(key.name + ".history.db"))

    def known(self, run_id: str, rows: Sequence[Row]) -> Head:
        """Returns the last signed head of a run with these entries; `EMPTY` if there is none.

        Raises:
            IntegrityError: The head is not in the ledger.
        """
        with self._connect() as database:
            head = _head(database, run_id)
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


class Signer:
    """Signs with a key in a file, and nothing but continuations of what it has signed."""

    def __init__(self, key: Path) -> None:
        self._key = SigningKey.load(key)
        self.key_id = self._key.id
        self.history = SignedHistory.beside(key)

    def sign(self, run_id: str, rows: Sequence[Row], last: float = 0.0) -> HeadSignature:
        """Signs the head after these entries, which follow those that were signed before; none repeats a signature.

        The head is remembered before the signature exists.

        Args:
            last: The time of the signature before, which this one repeats if the clock was set back a little since:
                readers refuse an older one.

        Raises:
            IntegrityError: They do not follow.
            InfrastructureError: The history cannot be used.
        """
        head, now = self.history.extend(run_id, rows), round(time.time(), 3)
        at = last if now < last <= now + SKEW_S else now
        return HeadSignature.make(run_id, head, at, self._key)


def check_keys(params: AnchorParams, root: Path) -> str:
    """Checks the keys of a checkout before runs: they are read only when the first head is signed, or the run verified.

    Returns:
        Which keys there are, as a phrase; empty if there are none.

    Raises:
        UsageError: A key cannot be used, or readers would not trust what it signs.
    """
    trusted = {path: load_public_key(root / path) for path in params.public_keys}
    if not params.key:
        return f"{len(trusted)} public keys" if trusted else ""
    signing = SigningKey.load(root / params.key).id
    if trusted and signing not in trusted.values():
        raise UsageError(
            f"anchor.key {params.key} does not belong to any key in anchor.public_keys ({', '.join(trusted)}), so "
            "`a2rl verify` would refuse every run: add its public key there"
        )
    return f"signs as {signing[:16]}"


def head_of(run: RunDir) -> Head | None:
    """Returns the head of what is safe of a run's ledger; None if nothing is."""
    return _last_of(_safe_rows(run))


def _safe_rows(run: RunDir) -> list[Row]:
    last = last_stored(run)  # first: what is added meanwhile is not safe yet
    return [row for row in run.ledger.rows() if row.seq <= last]


def _last_of(rows: Sequence[Row]) -> Head | None:
    return Head(seq=rows[-1].seq, hash=rows[-1].hash) if rows else None


def sign_heads(run: RunDir, signer: Signer) -> Head | None:
    """Signs the head of what is safe of a run's ledger, unless its last signature is of that head.

    A run that was not signed while it went on stays unsigned: late signatures prove no times, so readers refuse them.

    Returns:
        The signed head; None if nothing is safe, or the run stays unsigned.

    Raises:
        IntegrityError: The ledger does not continue what the signer has signed for this run.
        InfrastructureError: The signer's history cannot be used, or the file cannot be written.
    """
    with file_lock(run.root / LOCK, f"another process signs run {run.id}", LOCK_TIMEOUT_S):
        drop_half_line(run.root)
        rows, signed = _safe_rows(run), read_signatures(run.root)
        head = _last_of(rows)
        if head is not None and (not signed or (signed[-1].seq, signed[-1].hash) != (head.seq, head.hash)):
            known = signer.history.known(run.id, rows)
            if not signed and time.time() - rows[0].at > LATE_S:
                return None
            add_signature(run.root, signer.sign(run.id, rows[known.seq :], signed[-1].time if signed else 0.0))
        return head
