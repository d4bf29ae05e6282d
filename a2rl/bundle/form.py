"""The form of a bundle: a tar.gz whose first member, `bundle.json`, lists all others with their digests."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from a2rl.run.names import RUN_ID

INDEX, RUN, HIDDEN = "bundle.json", "run", "hidden"
LEDGER, CODE = "run/ledger.jsonl", "run/code.bundle"
"""The ledger as lines of JSON, and the code's history as a git bundle: readers open no database of others."""
SUFFIX = ".tar.gz"
MAX_FILES = 50_000
FREE_DISK_MARGIN = 512 << 20
MAX_BYTES = 64 << 30
"""The most bytes that a bundle may unpack to, unless a reader says otherwise."""
MAX_INDEX_BYTES = 64 << 20
MAX_LEDGER_BYTES = 1 << 30


class Member(BaseModel):
    """A file in a bundle."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Index(BaseModel):
    """The list of what a bundle has, and of what it only names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    run_id: str = Field(pattern=f"^{RUN_ID}$")
    a2rl: str
    """The version that made the bundle."""
    task: str = Field(pattern="^[a-z0-9_-]{1,100}$")
    variant: Literal["mini", "full"]
    files: dict[str, Member]
    left_out: dict[str, str]
    """Why files of the run are not here, by path in the run directory."""
    base_model: str
    """The name of the base model; its digest is in the ledger."""
    weights_away: tuple[str, ...]
    """The digests of the kept checkpoints whose weights are not here."""
