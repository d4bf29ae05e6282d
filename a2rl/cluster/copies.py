"""The object store with the copies of runs: which objects a copy has, and the manifest that names them.

The store is a folder (`file:///srv/a2rl`) or a bucket (`s3://bucket/prefix`). S3 takes its keys, region and endpoint
from the usual variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL.

    runs/<run>/spec.json                           the settings, from the moment when the run is submitted
    runs/<run>/ledger/<seq>-<epoch>.json           one object for each entry of the ledger
    runs/<run>/checkpoints/<digest>/<file>         the grader's copies of checkpoints, each written once
    runs/<run>/blobs/<sha256>                      all other files, and folders as tar files
    runs/<run>/manifests/<epoch>-<number>.json     what belongs to one state of the run

Only the manifest that the claims name is valid. What a process writes after it has lost the run is never named.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from a2rl.core.errors import A2rlError, InfrastructureError, IntegrityError, UsageError, first_line
from a2rl.core.files import StrictModel
from a2rl.run.ledger import Row, as_row
from a2rl.run.names import RUN_ID
from a2rl.run.spec import RunSpec

PARTIAL = ".part"
MAX_ENTRIES = 1_000_000
"""The number of entries in the ledger of a run: far more than its quota of submissions lets it have."""
FOLDERS = ("claims", "code", "logs", "report", "twins")
"""Folders of a run that are copied as one tar file each."""


class ObjectStore:
    """Objects by key. A key that can be read has its whole content.

    Args:
        url: `file:///folder` or `s3://bucket/prefix`.

    Raises:
        UsageError: The URL is neither.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        if not self._url.startswith(("file:///", "s3://")):  # a relative folder would be another one in each process
            raise UsageError(f"A2RL_STORE={url} is no store: write file:///folder or s3://bucket/prefix")

    @property
    def local_folder(self) -> Path | None:
        """The folder, if the store is one on this machine."""
        return Path(self._url.removeprefix("file://")) if self._url.startswith("file://") else None

    def write(self, key: str, content: bytes) -> None:
        """Writes an object; an existing one is replaced as a whole."""
        with self._errors(f"write {key}"):
            if (folder := self.local_folder) is None:
                self._files.pipe_file(self._path(key), content)
                return
            with _whole(folder / key) as partial:
                partial.write_bytes(content)

    def upload(self, key: str, path: Path) -> None:
        """Copies a file into the store; an existing object is replaced as a whole."""
        with self._errors(f"write {key}"):
            if (folder := self.local_folder) is None:
                self._files.put_file(str(path), self._path(key))
                return
            for left in (folder / key).parent.glob(f".*{PARTIAL}"):  # of an owner that was killed
                left.unlink(missing_ok=True)
            with _whole(folder / key) as partial:
                self._files.put_file(str(path), str(partial))

    def download(self, key: str, path: Path) -> None:
        """Copies an object to a file, which must not exist yet."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors(f"read {key}"):
            self._files.get_file(self._path(key), str(path))

    def read(self, key: str) -> bytes | None:
        """Returns the content of an object; None if there is no such object."""
        with self._errors(f"read {key}"), suppress(FileNotFoundError):
            return bytes(self._files.cat_file(self._path(key)))
        return None

    def read_all(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the contents of objects, fetched side by side where the store can do that.

        Raises:
            InfrastructureError: One of them is missing.
        """
        with self._errors("read the ledger"):
            if not keys:
                return []
            found: Mapping[str, bytes] = self._files.cat([self._path(key) for key in keys])
            by_name = {path.rpartition("/")[2]: content for path, content in found.items()}
            return [by_name[key.rpartition("/")[2]] for key in keys]

    def remove(self, key: str) -> None:
        """Removes an object, if it exists."""
        with self._errors(f"remove {key}"), suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._url.partition('://')[2]}/{key}"

    @cached_property
    def _files(self) -> Any:
        import fsspec

        protocol = self._url.partition("://")[0]
        try:
            options = {"use_listings_cache": False} if protocol == "s3" else {}
            return fsspec.filesystem(protocol, **options)
        except ImportError as error:
            need = "A2RL_STORE on S3 needs s3fs: `pip install --no-deps -r requirements-scale.lock` installs it"
            raise UsageError(need) from error

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turns every error of the store into one line."""
        try:
            yield
        except A2rlError:
            raise
        except FileNotFoundError as error:
            raise InfrastructureError(f"the store {self._url} cannot {what}: there is no such object") from error
        except Exception as error:  # botocore, aiohttp and fsspec raise many unrelated types
            text = first_line(error)[:300]
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            remedy = "free some space there" if full else "check A2RL_STORE and that the store is running"
            raise InfrastructureError(f"the store {self._url} cannot {what}: {text}; {remedy}") from error


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yields where to write a file. It gets its name, durably, once it is complete; after an error, nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{PARTIAL}")
    try:
        yield partial
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class CopyManifest(StrictModel):
    """One state of a run, as the names of the objects that hold it."""

    run_id: str = Field(pattern=f"^{RUN_ID}$")
    epoch: int
    number: int
    seq: int = 0
    """The number of entries of the ledger."""
    head: str = ""
    """The hash of the last of them."""
    epochs: dict[int, int] = Field(default_factory=dict)
    """By epoch, the last entry that was written under it."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 digests of files by their path in the run directory."""
    folders: dict[str, str] = Field(default_factory=dict)
    """SHA-256 digests of the tar files of folders."""
    checkpoints: dict[str, dict[str, int]] = Field(default_factory=dict)
    """The files of each checkpoint, with their sizes in bytes."""

    @property
    def key(self) -> str:
        """The object of this manifest."""
        return f"runs/{self.run_id}/manifests/{self.epoch:06}-{self.number:08}.json"

    def entry_keys(self) -> list[str]:
        """Returns the objects of all entries of the ledger, in order."""
        keys: list[str] = []
        for last, epoch in sorted((last, epoch) for epoch, last in self.epochs.items()):
            keys += [entry_key(self.run_id, seq, epoch) for seq in range(len(keys) + 1, last + 1)]
        return keys


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
    if found.seq != max(found.epochs.values(), default=0) or found.seq > MAX_ENTRIES:
        raise IntegrityError(f"{key} in the store names a ledger of {found.seq} entries, which no run has")
    return found


def entry_object(row: Row, epoch: int) -> bytes:
    """Returns the content of the object of an entry."""
    return json.dumps({**row._asdict(), "epoch": epoch}).encode()


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
