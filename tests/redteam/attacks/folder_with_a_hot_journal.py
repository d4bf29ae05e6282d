"""Sends the folder of a run whose ledger has a hot journal: whoever verifies the run loses the file that it names.

Databases of others are read from a copy without their journals.
"""

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the folder is made outside")


def held(after):
    from tests.bundles import database, journal_that_deletes
    from tests.redteam.look import reader

    def ledger(folder):
        (folder / "ledger.db").write_bytes(database(after.run.workspace / "made.db"))
        for name in ("ledger.db", "account.db"):
            (folder / f"{name}-journal").write_bytes(journal_that_deletes(reader().victim))

    return reader().look_at(ledger)
