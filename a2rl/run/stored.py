"""How much of a run's ledger is safe in the object store, if the run is copied to one.

The process that copies (a2rl/cluster/replica.py) writes this to `stored.json`. The grading service reads it: what it
tells an agent is what would survive the loss of this machine.
"""

from pydantic import BaseModel, ConfigDict

from a2rl.core.files import read_model, write_model
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Entry

FILE = "stored.json"


class Stored(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


def safe_entries(run: RunDir) -> list[Entry]:
    """Returns the entries of the ledger that are safe: all, if the run is not copied anywhere."""
    stored, entries = read_stored(run), run.ledger.entries()
    return entries if stored is None else [entry for entry in entries if entry.seq <= stored.seq]
