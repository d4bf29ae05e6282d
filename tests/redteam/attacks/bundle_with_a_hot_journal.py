"""Sends a bundle whose databases have hot journals: SQLite rolls them back, and deletes the file that they name.

No member of a bundle is a database, a journal, a write-ahead log or shared memory; all are refused by their names.
"""

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the bundle is made outside")


def held(after):
    from tests.bundles import database, journal_that_deletes, with_files
    from tests.redteam.look import reader

    made = database(after.run.workspace / "made.db")
    journal = journal_that_deletes(reader().victim)
    return reader().audit(
        with_files({"run/ledger.db": made, "run/ledger.db-journal": journal}),
        with_files({"run/account.db": made, "run/account.db-journal": journal}),
        with_files({"run/ledger.db-wal": b"\x37\x7f\x06\x82" * 100, "run/ledger.db-shm": b"x" * 32768}),
    )
