"""What leaves a run directory, in a bundle or a store, and comes back: names, and how much is safe in the store.

docs/run-directory.md says what the files are. Everything else is left out when a run is packed, and refused when one
comes. The process that copies a run (a2rl/cluster/replica.py) writes to `stored.json` how much of its ledger is safe.
The grading service reads it: what it tells an agent is what would survive the loss of this machine.
"""

import re
from math import inf
from pathlib import Path

from a2rl.core.errors import IntegrityError
from a2rl.core.files import StrictModel, read_model, write_model
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Entry

MAX_CHARS = 400
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_PART = r"[A-Za-z0-9_][^/]*"
_FILES = re.compile(
    "|".join((
        r"(spec|manifest|clock|gpus|trajectory|summary)\.json", r"(signatures|published)\.jsonl", r"refused\.txt",
        r"records/\w+\.json", r"grades/[\w.-]+\.(json|jsonl\.gz)", r"report/(index\.html|report\.json|report\.md)",
        rf"submissions/[0-9a-f]{{16}}/{_PART}", rf"(logs|twins|claims)/({_PART}/)*{_PART}",
    ))
)  # fmt: skip
ACCOUNTS = re.compile(r"(labels-)?account\.db")
_PLAIN = re.compile(rf"({_PART}/)*{_PART}")


def is_run_file(name: str) -> bool:
    """Says whether a file with this path can be in the directory of a run."""
    return is_below(name) and _PLAIN.fullmatch(name) is not None and _FILES.fullmatch(name) is not None


def is_below(name: str) -> bool:
    """Says whether a path stays below its folder and can be shown."""
    return len(name) <= MAX_CHARS and name.isprintable() and not {"", ".", ".."}.intersection(name.split("/"))


def place_of(name: str, root: Path) -> Path:
    """Returns where a file of a run that comes from a store is written.

    Raises:
        IntegrityError: No run has such a file.
    """
    if not (is_run_file(name) or ACCOUNTS.fullmatch(name)):
        raise IntegrityError(f"the copy in the store has a file {name[:MAX_CHARS]!r}, which no run has")
    return root / name


FILE = "stored.json"


class Stored(StrictModel):
    """The content of the file."""

    seq: int
    """The last entry of the ledger that is stored."""
    epoch: int
    """The claim under which this machine works on the run, or last did."""
    manifest: str
    """The valid copy that this run directory was made from, or that was made from it; empty if there was none yet."""


def read_stored(run: RunDir) -> Stored | None:
    """Returns how much is stored; None if the run is not copied anywhere."""
    try:
        return read_model(run.root / FILE, Stored)
    except FileNotFoundError:
        return None


def mark_stored(run: RunDir, stored: Stored) -> None:
    """Notes how much is stored."""
    write_model(run.root / FILE, stored)


def last_stored(run: RunDir) -> float:
    """Returns the number of the last entry of the ledger that is safe; infinity if the run is not copied anywhere.

    What another machine that takes the run over would not know must not be told to anybody.
    """
    stored = read_stored(run)
    return inf if stored is None else stored.seq


def stored_entries(run: RunDir, after: int = 0) -> list[Entry]:
    """Returns the entries of the ledger that are safe, with a sequence number above `after`."""
    last = last_stored(run)  # first: what is added meanwhile is not safe yet
    return [entry for entry in run.ledger.entries(after) if entry.seq <= last]
