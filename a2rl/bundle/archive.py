"""The file of a bundle: a tar.gz whose first member, `bundle.json`, lists all others with their digests.

`pack` puts everything into it that an audit needs, and nothing secret. `unpack` reads a file that anybody may have
made, so nothing in it is trusted: only regular files with names that a run can have are written, each once, into a new
folder, and only if the list at the beginning names them with their size and digest, and the disk has room for all of
them. Links, devices and other kinds of members end the reading.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Literal

from pydantic import Field, ValidationError

from a2rl import __version__
from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel, file_digest, machine_failure, validation_message
from a2rl.core.secrets import scrub_bytes
from a2rl.grading.submission_states import pruned
from a2rl.recording.code_history import export_history
from a2rl.results.manifest import FILE, files_of
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.inputs import hidden_of
from a2rl.run.ledger import events_of
from a2rl.run.names import MAX_CHARS, RUN_ID, is_plain, is_run_file

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


class Member(StrictModel):
    """A file in a bundle."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Index(StrictModel):
    """The list of what a bundle has, and of what it only names."""

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


ANCHORS = (FILE, "signatures.jsonl", "published.jsonl", "clock.json")
SECRET, UNKNOWN = "it has text with the form of a key", "it is no file of a run"


def pack(run: RunDir, target: Path, with_weights: bool) -> Index:
    """Writes the bundle of a run, atomically. The same run gives the same bytes.

    Args:
        run: The run; it should be finished.
        with_weights: Whether to include the kept checkpoints, with which a reader can grade them anew.

    Raises:
        UsageError: The run has not begun.
        InfrastructureError: The disk or git failed.
    """
    if not run.ledger.path.exists():
        raise UsageError(f"run {run.id} has not begun, so there is nothing to bundle")
    with tempfile.TemporaryDirectory(prefix="a2rl-bundle-") as scratch:
        listed, weights = list(map(str, files_of(run))), _weights(run)
        members = _members(run, filter(is_run_file, listed), Path(scratch))
        left_out = {name: UNKNOWN for name in listed if not is_run_file(name)}
        for name in [name for name, path in members.items() if _has_secret(path)]:
            left_out[name.removeprefix(f"{RUN}/")] = SECRET
            del members[name]
        if with_weights:
            members |= {f"{RUN}/{path.relative_to(run.root)}": path for files in weights.values() for path in files}
        index = _index(run, members, left_out, () if with_weights else tuple(sorted(weights)))
        _write_archive(target, index, members)
        return index


def _members(run: RunDir, listed: Iterable[str], scratch: Path) -> dict[str, Path]:
    """Returns the files of the bundle by name, without weights."""
    anchors = (name for name in ANCHORS if (run.root / name).is_file())
    found = {f"{RUN}/{name}": run.root / name for name in (*listed, *anchors)}
    found[LEDGER] = scratch / "ledger.jsonl"
    found[LEDGER].write_text("".join(json.dumps(row) + "\n" for row in run.ledger.rows()), encoding="utf-8")
    if export_history(run.code, scratch / "code.bundle"):
        found[CODE] = scratch / "code.bundle"
    hidden = hidden_of(run)
    if not hidden.is_relative_to(run.root):
        files = (path for path in sorted(hidden.rglob("*")) if path.is_file() and not path.is_symlink())
        found |= {f"{HIDDEN}/{path.relative_to(hidden)}": path for path in files}
    return found


def _weights(run: RunDir) -> dict[str, list[Path]]:
    """Returns the weight files of the kept checkpoints by the digest of the weights."""
    entries = run.ledger.entries()
    accepted = {event.weights_digest for event in events_of(entries, SubmissionAccepted)}
    kept = accepted - pruned(entries)
    return {digest: sorted(run.checkpoint(digest).glob("*.safetensors")) for digest in kept}


def _has_secret(path: Path) -> bool:
    data = path.read_bytes()
    return scrub_bytes(data) != data


def _index(run: RunDir, members: dict[str, Path], left_out: dict[str, str], away: tuple[str, ...]) -> Index:
    files = {name: Member(bytes=path.stat().st_size, sha256=file_digest(path)) for name, path in members.items()}
    return Index(
        run_id=run.id,
        a2rl=__version__,
        task=run.spec.task,
        variant=run.spec.variant,
        files=dict(sorted(files.items())),
        left_out=left_out,
        base_model=run.spec.model,
        weights_away=away,
    )


def _write_archive(target: Path, index: Index, members: dict[str, Path]) -> None:
    making = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with (
            making.open("wb") as file,
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            content = (index.model_dump_json(indent=1) + "\n").encode()
            _add_member(archive, INDEX, len(content), io.BytesIO(content))
            for name, member in index.files.items():
                with members[name].open("rb") as opened:
                    _add_member(archive, name, member.bytes, opened)
        making.replace(target)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise machine_failure(f"write the bundle {target}", error) from error


def _add_member(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)


BLOCK = 1 << 20
DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError)
MAX_READ = MAX_INDEX_BYTES
"""The most bytes that the library may ask for at once: a header that claims to be larger is an attack on memory."""


def unpack(bundle: Path, folder: Path, max_bytes: int = MAX_BYTES) -> Index:
    """Writes the files of a bundle below a new, empty folder.

    Args:
        folder: Where to write; it must not exist.

    Raises:
        UsageError: It is not a bundle, is damaged, or has something that no bundle has.
        InfrastructureError: The disk failed.
    """
    folder.mkdir(mode=0o700)
    try:
        with (
            bundle.open("rb") as file,
            gzip.GzipFile(fileobj=file) as packed,
            tarfile.open(fileobj=_Bounded(packed, max_bytes), mode="r:") as archive,
        ):
            return _unpack(archive, folder, max_bytes)
    except DAMAGED as error:
        raise UsageError(f"{bundle} is not a bundle of a2rl, or is damaged: {error}") from error
    except OSError as error:
        raise machine_failure(f"unpack {bundle}", error) from error


def _unpack(archive: tarfile.TarFile, folder: Path, max_bytes: int) -> Index:
    index = _read_index(archive)
    waiting, size = set(index.files), sum(member.bytes for member in index.files.values())
    if len(waiting) > MAX_FILES:
        raise UsageError(f"the bundle has more than {MAX_FILES:,} files, which no run has")
    if size > max_bytes:
        raise UsageError(f"the bundle unpacks to more than {max_bytes:,} bytes: allow more with --max-gb")
    if (free := shutil.disk_usage(folder).free - FREE_DISK_MARGIN) < size:
        raise UsageError(
            f"the bundle unpacks to {size >> 20:,} MiB, and {folder.parent} has room for {max(0, free) >> 20:,}: free "
            "some space, or set TMPDIR to a folder on another disk"
        )
    for name in waiting:
        _check_name(name)
    while (entry := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined] # otherwise it keeps every header
        if not entry.isreg() or entry.name not in waiting or entry.size != index.files[entry.name].bytes:
            raise UsageError(f"the bundle has {entry.name[:MAX_CHARS]!r}, which its list does not have like that")
        waiting.remove(entry.name)
        content = archive.extractfile(entry)
        if content is None or _write_member(content, folder / entry.name) != index.files[entry.name].sha256:
            raise UsageError(f"{entry.name} in the bundle is not what its list says: it was damaged or changed")
    if waiting:
        raise UsageError(f"the bundle lacks {min(waiting)}, which its list has")
    return index


def _read_index(archive: tarfile.TarFile) -> Index:
    entry = archive.next()
    content = archive.extractfile(entry) if entry is not None and entry.isreg() and entry.name == INDEX else None
    if entry is None or content is None or entry.size > MAX_INDEX_BYTES:
        raise UsageError(f"it does not begin with {INDEX}: this is not a bundle of a2rl")
    try:
        return Index.model_validate_json(content.read())
    except ValidationError as error:
        raise UsageError(f"{INDEX} in the bundle is not valid: {validation_message(error)[:500]}") from error


def _check_name(name: str) -> None:
    top, _, rest = name.partition("/")
    if name in {LEDGER, CODE} or (top == RUN and is_run_file(rest)) or (top == HIDDEN and is_plain(rest)):
        return
    raise UsageError(f"the bundle has a file with the name {name[:MAX_CHARS]!r}, which no run has")


def _write_member(content: IO[bytes], path: Path) -> str:
    """Writes a new file and returns its digest."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while block := content.read(BLOCK):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


class _Bounded(io.RawIOBase):
    """A stream that is read forwards, within limits on each read and on all of them together."""

    def __init__(self, stream: gzip.GzipFile, max_bytes: int) -> None:
        self._stream, self._left = stream, 2 * max_bytes + MAX_INDEX_BYTES  # headers and padding come on top

    def read(self, size: int = -1, /) -> bytes:
        """Reads at most `size` bytes."""
        if size < 0 or size > MAX_READ:
            raise UsageError("the bundle has a header that is too large: this is not a bundle of a2rl")
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise UsageError("the bundle unpacks to more than is allowed: this is not a bundle of a2rl")
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Goes forwards, by reading."""
        here = self.tell()
        if whence != os.SEEK_SET or offset < here:
            raise UsageError("the bundle cannot be read in one pass: this is not a bundle of a2rl")
        while here < offset and (data := self.read(min(BLOCK, offset - here))):
            here += len(data)
        return here

    def tell(self) -> int:
        """Returns the position."""
        return self._stream.tell()
