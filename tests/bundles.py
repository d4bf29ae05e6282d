"""Bundles that were unpacked, and hostile parts for them and for the folders of runs."""

import hashlib
import io
import json
import sqlite3
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from a2rl.bundle.audit import OpenBundle, audit, open_bundle
from a2rl.bundle.confined import Done, shown_of
from a2rl.core.settings import Settings
from a2rl.results.verify import Trust
from a2rl.run.ledger import SCHEMA

Members = list[tuple[tarfile.TarInfo, bytes]]
FOREVER = "SELECT count(*) FROM (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c)"
HANGS = f"CREATE TRIGGER hangs AFTER INSERT ON events BEGIN {FOREVER}; END;"
MORE_ROWS = "CREATE TRIGGER more AFTER INSERT ON events BEGIN INSERT INTO other VALUES (1); END;"
VIEW = f"CREATE VIEW events AS {FOREVER};"


@contextmanager
def opened(bundle: Path, settings: Settings) -> Iterator[OpenBundle]:
    """Unpacks a bundle in this process; it is removed at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        yield open_bundle(bundle, Path(scratch), settings)


def audited_here(bundle: Path, settings: Settings, *_: object, **__: object) -> Done:
    """Audits a bundle as for a leaderboard, but in this process, because a sandbox takes seconds to start."""
    with opened(bundle, settings) as theirs:
        found = audit(theirs.run, Trust(), None, theirs.absent)
        return Done(audit=found, shown=shown_of(theirs.run, theirs.settings) if found.sound else None)


def rewritten(bundle: Path, target: Path, edit: Callable[[Members], None]) -> Path:
    """Writes a bundle whose members are edited; nothing else is made to fit."""
    with tarfile.open(bundle) as archive:
        members = [(each, archive.extractfile(each).read()) for each in archive]  # type: ignore[union-attr]
    edit(members)
    with tarfile.open(target, "w:gz") as archive:
        for entry, content in members:
            entry.size = len(content) if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
    return target


def with_files(files: Mapping[str, bytes | None], **left_out: str) -> Callable[[Members], None]:
    """Adds or replaces files of a bundle, or removes them (None), with a list that fits.

    Args:
        files: The contents by name.
        left_out: Why files were left out, by their paths in the run with `__` for a slash.
    """

    def edit(members: Members) -> None:
        index = json.loads(members[0][1])
        members[:] = [each for each in members if each[0].name not in files]
        for name, content in files.items():
            index["files"].pop(name, None)
            if content is not None:
                index["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
                members.append((tarfile.TarInfo(name), content))
        index["left_out"] |= {name.replace("__", "/"): why for name, why in left_out.items()}
        members[0] = members[0][0], json.dumps(index).encode()

    return edit


def database(path: Path, *statements: str, schema: str = SCHEMA) -> bytes:
    """Makes a database without a write-ahead log, and returns its bytes."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as made:
        made.executescript(f"{schema};{';'.join(statements)};CREATE TABLE IF NOT EXISTS other (x)")
        made.commit()
    return path.read_bytes()


def journal_that_deletes(victim: Path) -> bytes:
    """Returns the journal of a transaction over several files whose super-journal is the victim: SQLite removes it."""
    name, magic = str(victim).encode(), bytes.fromhex("d9d505f920a163d7")
    header = (magic + struct.pack(">IIIII", 0, 0, 1, 512, 4096)).ljust(512, b"\0")
    return header + struct.pack(">I", (1 << 30) // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
