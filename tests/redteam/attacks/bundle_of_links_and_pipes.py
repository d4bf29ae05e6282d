"""Sends a bundle whose members are links, second names, pipes or devices, or have names that lead out of its folder.

A bundle has regular files with the names that a run has. Everything else is refused before it is written.
"""

import tarfile

LEVEL = "sandbox"


def attack(scene):
    raise PermissionError("the bundle is made outside")


def held(after):
    from tests.bundles import with_files
    from tests.redteam.look import reader

    victim = str(reader().victim)

    def becomes(kind):
        def edit(members):
            entry = next(entry for entry, _ in members if entry.name == "run/logs/agent.log")
            entry.type, entry.linkname = kind, victim

        return edit

    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
    out = with_files({f"run/logs/../../../../../../../..{victim}": b"x", victim: b"x", "hidden/../../x": b"x"})
    return reader().audit(out, *map(becomes, kinds))
