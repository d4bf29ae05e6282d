"""Unpacks a bundle, which anybody may have made: nothing in it is trusted.

Only regular files with names that a run can have are written, each once, into a new folder, and only if the list at
the beginning names them with their size and digest, and the disk has room for all of them. Links, devices and other
kinds of members end the reading.
"""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from a2rl.bundle.form import (
    CODE,
    FREE_DISK_MARGIN,
    HIDDEN,
    INDEX,
    LEDGER,
    MAX_BYTES,
    MAX_FILES,
    MAX_INDEX_BYTES,
    RUN,
    Index,
)
from a2rl.core.errors import UsageError
from a2rl.core.files import machine_failure, validation_message
from a2rl.run.names import MAX_CHARS, is_plain, is_run_file

BLOCK = 1 << 20
DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError, RecursionError)
MAX_READ = MAX_INDEX_BYTES
"""The most bytes that the library may ask for at once: a header that claims to be larger is an attack on memory."""


def unpack(bundle: Path, folder: Path, max_bytes: int = MAX_BYTES) -> Index:
    """Writes the files of a bundle below a new, empty folder.

    Args:
        bundle: The file.
        folder: Where to write; it must not exist.
        max_bytes: The most bytes that may be written.

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
    if len(waiting) > MAX_FILES or size > max_bytes:
        raise UsageError(
            f"the bundle has more than {MAX_FILES:,} files or {max_bytes:,} bytes: allow more with --max-gb"
        )
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
        if content is None or _write(content, folder / entry.name) != index.files[entry.name].sha256:
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


def _write(content: IO[bytes], path: Path) -> str:
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

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can go forwards."""
        return True
