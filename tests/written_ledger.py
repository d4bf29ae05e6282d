"""Writes a whole ledger at once, for runs that nobody waits for: nothing is flushed to the disk."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from a2rl.core.files import canonical_json, digest_of
from a2rl.run.events import Event
from a2rl.run.ledger import GENESIS, SCHEMA

BEGAN_AT = 1_800_000_000.0
"""The time of the first entry; the others follow one second apart."""


def write_ledger(path: Path, events: Sequence[Event]) -> str:
    """Writes a new ledger with these events, as `Ledger.append` would, and returns the head of its chain."""
    previous, rows = GENESIS, []
    for seq, event in enumerate(events, start=1):
        at, body = BEGAN_AT + seq, canonical_json(event.model_dump(mode="json"))
        entry_hash = digest_of([seq, at, event.kind, body, previous])
        rows.append((seq, at, event.kind, body, previous, entry_hash))
        previous = entry_hash
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.executescript(f"PRAGMA journal_mode=WAL; BEGIN; {SCHEMA}")
        database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.execute("COMMIT")
    return previous
