"""Sends the folder of a run whose ledger has triggers and views that work forever, or add rows, when it is read.

The tables, triggers and views of a ledger must be exactly a2rl's own.
"""

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the folder is made outside")


def held(after):
    from tests.bundles import HANGS, MORE_ROWS, VIEW, database
    from tests.redteam.look import reader

    made = [
        database(after.run.workspace / "made.db", HANGS, MORE_ROWS),
        database(after.run.workspace / "made.db", VIEW, schema=""),
    ]
    return reader().look_at(*(lambda folder, each=each: (folder / "ledger.db").write_bytes(each) for each in made))
