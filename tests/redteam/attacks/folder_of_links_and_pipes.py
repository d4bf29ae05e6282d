"""Sends the folder of a run in which files are links or second names of the reader's, pipes, or without an end.

What is no regular file of its own is refused, unread and unwritten; no command waits for it.
"""

import os

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the folder is made outside")


def held(after):
    from tests.redteam.look import IS_SOUND, reader

    victim = reader().victim

    def second_names(folder):
        for suffix in ("-shm", "-wal"):
            (folder / f"ledger.db{suffix}").hardlink_to(victim)

    def replaced(name, make):
        def edit(folder):
            (folder / name).unlink(missing_ok=True)
            make(folder / name)

        return edit

    found = reader().look_at(second_names)
    if found and not found.endswith(IS_SOUND):  # the ledger itself is whole
        return found
    return reader().look_at(
        replaced("ledger.db", lambda path: path.symlink_to(victim)),
        replaced("records/grade.json", os.mkfifo),
        replaced("records/setup.json", lambda path: path.symlink_to("/dev/zero")),
    )
