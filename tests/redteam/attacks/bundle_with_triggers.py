"""Sends a bundle with a ledger whose triggers and views work forever when somebody audits it.

The audit opens no database of others: a bundle has rows as text, and one with a database in it is refused.
"""

import sqlite3
from pathlib import Path

LEVEL = "sandbox"
FOREVER = "SELECT count(*) FROM (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c)"
TABLE = "CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL, kind TEXT, payload TEXT, prev TEXT, hash TEXT)"
TRAPS = {
    "trigger": [TABLE, f"CREATE TRIGGER hangs AFTER INSERT ON events BEGIN {FOREVER}; END"],
    "view": [f"CREATE VIEW events AS {FOREVER}"],
}


def attack(scene):
    for name, statements in TRAPS.items():
        made = sqlite3.connect(f"{name}.db")
        for statement in statements:
            made.execute(statement)
        made.close()


def held(after):
    from tests.bundles import with_files
    from tests.redteam.look import reader

    trigger, view = (Path(after.run.workspace, f"{name}.db").read_bytes() for name in TRAPS)
    return reader().audit(
        with_files({"run/ledger.db": trigger, "run/ledger.jsonl": None}),
        with_files({"run/ledger.db": view, "run/account.db": trigger}),
    )
