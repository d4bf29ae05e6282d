"""Makes events of submissions, and writes a whole ledger at once, for runs that nobody waits for: nothing is flushed to
the disk."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from a2rl.core.files import canonical_json, digest_of
from a2rl.run.events import Event, Graded, SubmissionAccepted
from a2rl.run.ledger import GENESIS, SCHEMA, Entry
from a2rl.scoring.score import TaskScore, summarise

BEGAN_AT = 1_800_000_000.0
"""The time of the first entry; the others follow one second apart."""


def accepted(
    number: int, at_s: float, digest: str = "", receipt: int | None = None, **changes: Any
) -> SubmissionAccepted:
    """Returns the event of a submission whose digest and receipt are its number, unless others are given."""
    values: dict[str, Any] = {
        "submission_id": number, "elapsed_s": at_s, "model_path": f"output/v{number}", "code_revision": None,
        "weights_digest": digest or f"{number:064}", "receipt": receipt or number,
    }  # fmt: skip
    return SubmissionAccepted(**values | changes)


def graded(digest: str, at_s: float, score: TaskScore | None = None, **changes: Any) -> Graded:
    """Returns the event of a grade, of no items unless there is a score."""
    values: dict[str, Any] = {"result": score or summarise([]), "improvement": None, "items_digest": ""}
    return Graded(weights_digest=digest, elapsed_s=at_s, **values | changes)


def tried(number: int, at_s: float, score: TaskScore, digest: str = "", grading_s: float = 0.0) -> list[Event]:
    """Returns the events of a submission and of its grade."""
    came = accepted(number, at_s, digest)
    return [came, graded(came.weights_digest, at_s + grading_s, score)]


def entries(*events: Event) -> list[Entry]:
    """Returns entries of a ledger with these events, which are dated and chained to nothing."""
    return [Entry(seq, 0.0, event, GENESIS, GENESIS) for seq, event in enumerate(events, start=1)]


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
