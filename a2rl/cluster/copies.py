"""The copy of a run in the store: which objects it has, and the manifest that names them.

    runs/<run>/spec.json                           the settings, from the moment when the run is submitted
    runs/<run>/ledger/<seq>-<epoch>.json           one object for each entry of the ledger
    runs/<run>/checkpoints/<digest>/<file>         the grader's copies of checkpoints, each written once
    runs/<run>/blobs/<sha256>                      all other files, and folders as tar files
    runs/<run>/manifests/<epoch>-<number>.json     what belongs to one state of the run

Only the manifest that the claims name is valid. What a process writes after it has lost the run is never named.
"""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from a2rl.cluster.store import ObjectStore
from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Row, as_row
from a2rl.run.names import RUN_ID
from a2rl.run.spec import RunSpec

FOLDERS = ("code", "logs", "report")
"""Folders of a run that are copied as one tar file each."""
NOT_COPIED = frozenset({"owner.lock", "stored.json", "gpus.json", "refused.txt"})
"""Files of a run directory that belong to one machine."""


class CopyManifest(BaseModel):
    """One state of a run, as the names of the objects that hold it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str = Field(pattern=f"^{RUN_ID}$")
    epoch: int
    number: int
    seq: int = 0
    """The number of entries of the ledger."""
    head: str = ""
    """The hash of the last of them."""
    epochs: dict[int, int] = {}
    """By epoch, the last entry that was written under it."""
    files: dict[str, str] = {}
    """SHA-256 digests of files by their path in the run directory."""
    folders: dict[str, str] = {}
    """SHA-256 digests of the tar files of folders."""
    checkpoints: dict[str, dict[str, int]] = {}
    """The files of each checkpoint, with their sizes in bytes."""

    @property
    def key(self) -> str:
        """The object of this manifest."""
        return f"runs/{self.run_id}/manifests/{self.epoch:06}-{self.number:08}.json"

    def entry_keys(self) -> list[str]:
        """Returns the objects of all entries of the ledger, in order."""
        ends = sorted((last, epoch) for epoch, last in self.epochs.items())
        epochs = [next(epoch for last, epoch in ends if last >= seq) for seq in range(1, self.seq + 1)]
        return [entry_key(self.run_id, seq, epoch) for seq, epoch in enumerate(epochs, start=1)]


def epoch_of(manifest: str) -> int:
    """Returns the epoch under which the copy with this manifest was made."""
    return int(manifest.rpartition("/")[2].partition("-")[0])


def entry_key(run_id: str, seq: int, epoch: int) -> str:
    """Returns the object of an entry of the ledger."""
    return f"runs/{run_id}/ledger/{seq:08}-{epoch:06}.json"


def blob_key(run_id: str, digest: str) -> str:
    """Returns the object of a file with this SHA-256 digest."""
    return f"runs/{run_id}/blobs/{digest}"


def checkpoint_key(run_id: str, checkpoint: str, file: str) -> str:
    """Returns the object of a file of a checkpoint."""
    return f"runs/{run_id}/checkpoints/{checkpoint}/{file}"


def spec_key(run_id: str) -> str:
    """Returns the object with the settings of a run."""
    return f"runs/{run_id}/spec.json"


def write_spec(store: ObjectStore, spec: RunSpec) -> None:
    """Stores the settings of a run, so that any machine can begin it."""
    store.write(spec_key(spec.run_id), (spec.model_dump_json(indent=2) + "\n").encode())


def read_spec(store: ObjectStore, run_id: str) -> RunSpec | None:
    """Returns the settings of a run; None if the store does not have it."""
    content = store.read(spec_key(run_id))
    try:
        return None if content is None else RunSpec.model_validate_json(content, extra="ignore")
    except ValueError as error:
        raise IntegrityError(f"the spec of run {run_id} in the store cannot be read: {error}") from error


def read_manifest(store: ObjectStore, key: str) -> CopyManifest:
    """Returns a manifest.

    Raises:
        InfrastructureError: The store does not have it.
    """
    content = store.read(key)
    if content is None:
        raise InfrastructureError(f"the store lacks {key}: is A2RL_STORE the one that belongs to A2RL_CLAIMS?")
    try:
        found = CopyManifest.model_validate_json(content)
    except ValueError as error:
        raise IntegrityError(f"{key} in the store cannot be read: {error}") from error
    if found.key != key:
        raise IntegrityError(f"{key} in the store is the manifest of something else")
    return found


def entry_object(row: Row, epoch: int) -> bytes:
    """Returns the content of the object of an entry."""
    names = ("seq", "at", "kind", "body", "previous", "hash")
    return json.dumps({**dict(zip(names, row, strict=True)), "epoch": epoch}).encode()


def parse_entry(content: bytes) -> Row:
    """Returns the row of the ledger in an object.

    Raises:
        IntegrityError: It has none.
    """
    try:
        found: dict[str, Any] = json.loads(content)
        return as_row([found[name] for name in Row._fields])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise IntegrityError(f"an entry of the ledger in the store cannot be read: {error!r}") from error


def run_of(run: RunDir) -> list[str]:
    """Returns the names of the plain files of a run directory that are copied, relative to it."""
    tops = [path for path in run.root.iterdir() if path.is_file() and not path.is_symlink()]
    patterns = ("records/*.json", "grades/*.json", "grades/*.jsonl.gz")
    below = [path for pattern in patterns for path in run.root.glob(pattern)]
    names = (str(path.relative_to(run.root)) for path in (*tops, *below) if not path.name.startswith("."))
    return sorted(name for name in names if name not in NOT_COPIED and ".db" not in name)
