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
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal, NamedTuple

from pydantic import Field, ValidationError

from a2rl import __version__
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import MACHINE_ERRORS, StrictModel, file_digest, machine_failure, validation_message
from a2rl.core.secrets import scrub_bytes
from a2rl.grading.submission_states import pruned
from a2rl.recording.code_history import export_history
from a2rl.results.manifest import FILE, files_of
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.inputs import hidden_of
from a2rl.run.ledger import events_of
from a2rl.run.names import MAX_CHARS, RUN_ID, is_below, is_run_file
from a2rl.run.records import GradeRecord

INDEX, RUN, HIDDEN = "bundle.json", "run", "hidden"
LEDGER, CODE = "run/ledger.jsonl", "run/code.bundle"
"""The ledger as lines of JSON, and the code's history as a git bundle: readers open no database of others."""
SUFFIX = ".tar.gz"
LEVEL, LEVEL_OF_WEIGHTS = 9, 1
"""Of gzip. Weights hardly shrink: level 1 makes 80% of bfloat16 at 40 MB/s, and level 9 makes 79% at 12 MB/s."""
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
NEEDED = (LEDGER, f"{RUN}/spec.json", f"{RUN}/{FILE}")
SECRET, UNKNOWN = "it has text with the form of a key", "it is no file of a run"


def pack(run: RunDir, target: Path, with_weights: bool) -> Index:
    """Writes the bundle of a run, atomically. The same run gives the same bytes.

    Args:
        run: The run; it should be finished.
        with_weights: Whether to include the weights of the checkpoint that counts, which a reader can grade anew.

    Raises:
        UsageError: The run has not begun, has files that no bundle can have or a secret in one that each must have, or
            the target is a folder or in none.
        InfrastructureError: The disk or git failed.
    """
    if not run.ledger.path.exists():
        raise UsageError(f"run {run.id} has not begun, so there is nothing to bundle")
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"a bundle cannot be written to {target}: give a file in a folder that exists")
    with tempfile.TemporaryDirectory(prefix="a2rl-bundle-") as scratch:
        listed, weights = list(map(str, files_of(run))), _weights(run)
        members = _members(run, filter(is_run_file, listed), Path(scratch))
        _check_names(members)
        left_out = {name: UNKNOWN for name in listed if not is_run_file(name)}
        for name in [name for name, path in members.items() if _has_secret(path)]:
            if name in NEEDED:
                raise UsageError(f"no bundle can be without {name.removeprefix(f'{RUN}/')}, but {SECRET}")
            left_out[name.removeprefix(f"{RUN}/")] = SECRET
            del members[name]
        packed = weights.pop(_chosen(run), []) if with_weights else []
        members |= {f"{RUN}/{path.relative_to(run.root)}": path for path in packed}
        index = _index(run, members, left_out, tuple(sorted(weights)))
        _write_archive(target, index, members, LEVEL_OF_WEIGHTS if packed else LEVEL)
        return index


def _members(run: RunDir, listed: Iterable[str], scratch: Path) -> dict[str, Path]:
    """Returns the files of the bundle by name, without weights."""
    anchors = (name for name in ANCHORS if (run.root / name).is_file())
    found = {f"{RUN}/{name}": run.root / name for name in (*listed, *anchors)}
    found[LEDGER] = scratch / "ledger.jsonl"
    found[LEDGER].write_text("".join(json.dumps(row) + "\n" for row in run.ledger.rows()), encoding="utf-8")
    if export_history(run.code, scratch / "code.bundle"):
        found[CODE] = scratch / "code.bundle"
    if not run.record_path("setup").exists():
        return found  # it failed before it had any data
    hidden = hidden_of(run)
    if not hidden.is_relative_to(run.root):
        files = (path for path in sorted(hidden.rglob("*")) if path.is_file())  # as for the digest of the data
        found |= {f"{HIDDEN}/{path.relative_to(hidden)}": path for path in files}
    return found


def _weights(run: RunDir) -> dict[str, list[Path]]:
    """Returns the weight files of the kept checkpoints by the digest of the weights."""
    entries = run.ledger.entries()
    accepted = {event.weights_digest for event in events_of(entries, SubmissionAccepted)}
    kept = accepted - pruned(entries)
    return {digest: sorted(run.checkpoint(digest).glob("*.safetensors")) for digest in kept}


def _chosen(run: RunDir) -> str:
    """Returns the digest of the checkpoint that counts; empty if the run has no result."""
    record, accepted = run.read("grade", GradeRecord), run.ledger.events(SubmissionAccepted)
    return next((each.weights_digest for each in accepted if record and each.submission_id == record.submission_id), "")


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


def _write_archive(target: Path, index: Index, members: dict[str, Path], level: int) -> None:
    making = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with (
            making.open("wb") as file,
            gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=level, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            content = (index.model_dump_json(indent=1) + "\n").encode()
            _add_member(archive, INDEX, len(content), io.BytesIO(content))
            for name, member in index.files.items():
                with members[name].open("rb") as opened:
                    _add_member(archive, name, member.bytes, opened)
        making.replace(target)
    except BaseException as error:  # it may have many GB, and nothing else would remove it
        with suppress(OSError):
            making.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise machine_failure(f"write the bundle {target}", error) from error
        raise


def _add_member(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)


BLOCK = 1 << 20
DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError)
MAX_LONG = 4096
"""The most bytes of a header with a long name or a large size; `MAX_CHARS` take less."""


def unpack(bundle: Path, folder: Path, max_bytes: int = MAX_BYTES) -> Index:
    """Writes the files of a bundle below a new, empty folder.

    Args:
        folder: Where to write; it must not exist.

    Raises:
        UsageError: It is not a bundle, is damaged, or has something that no bundle has.
        InfrastructureError: The disk failed or has no room for it.
    """
    folder.mkdir(mode=0o700)
    try:
        with bundle.open("rb") as file, gzip.GzipFile(fileobj=file) as packed:
            return _unpack(_Archive(packed), folder, max_bytes)
    except DAMAGED as error:
        raise UsageError(f"{bundle} is not a bundle of a2rl, or is damaged: {error}") from error
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise machine_failure(f"unpack {bundle}", error) from error
        raise UsageError(f"{bundle} has files that cannot be unpacked: {error.strerror or error}") from error


def _unpack(archive: "_Archive", folder: Path, max_bytes: int) -> Index:
    index = _read_index(archive)
    waiting, size = set(index.files), sum(member.bytes for member in index.files.values())
    _check_names(waiting)
    if size > max_bytes:
        raise UsageError(f"the bundle unpacks to more than {max_bytes:,} bytes: allow more with --max-gb")
    if (free := shutil.disk_usage(folder).free - FREE_DISK_MARGIN) < size:
        raise InfrastructureError(
            f"the bundle unpacks to {size >> 20:,} MiB, and {folder.parent} has room for {max(0, free) >> 20:,}: free "
            "some space, or set TMPDIR to a folder on another disk"
        )
    while (entry := archive.next()) is not None:
        if entry.name not in waiting or entry.size != index.files[entry.name].bytes:
            raise UsageError(f"the bundle has {entry.name[:MAX_CHARS]!r}, which its list does not have like that")
        waiting.remove(entry.name)
        if _write_member(archive.content(entry), folder / entry.name) != index.files[entry.name].sha256:
            raise UsageError(f"{entry.name} in the bundle is not what its list says: it was damaged or changed")
    if waiting:
        raise UsageError(f"the bundle lacks {min(waiting)}, which its list has")
    return index


def _read_index(archive: "_Archive") -> Index:
    entry = archive.next()
    if entry is None or entry.name != INDEX or entry.size > MAX_INDEX_BYTES:
        raise UsageError(f"it does not begin with {INDEX}: this is not a bundle of a2rl")
    try:
        return Index.model_validate_json(b"".join(archive.content(entry)))
    except ValidationError as error:
        raise UsageError(f"{INDEX} in the bundle is not valid: {validation_message(error)[:500]}") from error


def _check_names(names: Collection[str]) -> None:
    """Checks names of files, before they are packed and before they are unpacked."""
    if len(names) > MAX_FILES:
        raise UsageError(f"a bundle cannot have more than {MAX_FILES:,} files")
    for name in names:
        top, _, rest = name.partition("/")
        is_known = name in {LEDGER, CODE} or (top == RUN and is_run_file(rest)) or (top == HIDDEN and is_below(rest))
        if not is_known:
            raise UsageError(f"a bundle cannot have a file with the name {name[:MAX_CHARS]!r}")


def _write_member(content: Iterable[bytes], path: Path) -> str:
    """Writes a new file and returns its digest."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for block in content:
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


class _Entry(NamedTuple):
    """A file in an archive."""

    name: str
    size: int


class _Archive:
    """The files of an archive as `pack` writes them, read once and forwards.

    Not with `tarfile`, whose other kinds of members and headers can take it hours, or all memory.
    """

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream

    def next(self) -> _Entry | None:
        """Returns the next file, after the content of the one before was read; None at the end."""
        header, long = self._header(), dict[bytes, bytes]()
        if header is not None and header.type == tarfile.XHDTYPE and header.size <= MAX_LONG:
            long = _records(b"".join(self.content(_Entry("", header.size))))
            header = self._header()
        if header is None:
            return None
        if header.type not in {tarfile.REGTYPE, tarfile.AREGTYPE}:
            raise UsageError(f"{header.name[:MAX_CHARS]!r} in the bundle is not a regular file, as all must be")
        name = long[b"path"].decode() if b"path" in long else header.name
        return _Entry(name, int(long.get(b"size", header.size)))

    def content(self, entry: _Entry) -> Iterator[bytes]:
        """Yields the content of the file that `next` returned."""
        left = entry.size
        while left > 0:
            if not (block := self._stream.read(min(BLOCK, left))):
                raise EOFError("it ends too early")
            left -= len(block)
            yield block
        self._stream.read(-entry.size % tarfile.BLOCKSIZE)

    def _header(self) -> tarfile.TarInfo | None:
        block = self._stream.read(tarfile.BLOCKSIZE)
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape") if block.strip(b"\0") else None


def _records(data: bytes) -> dict[bytes, bytes]:
    """Returns the records of a header with a long name or a large size: `19 path=run/logs/x` and a line break."""
    found = {}
    while data:
        length = data.partition(b" ")[0]
        record, data = data[: int(length)], data[int(length) :]
        name, is_record, value = record[len(length) + 1 :].partition(b"=")
        if not is_record or not value.endswith(b"\n"):
            raise ValueError("a header cannot be read")
        found[name] = value[:-1]
    return found
