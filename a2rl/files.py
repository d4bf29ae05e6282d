"""Files that are whole or absent, and digests of what is in them."""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from a2rl.errors import InfrastructureError, IntegrityError
from a2rl.secrets import scrub

TEMPORARY = ".tmp"
STALE_S = 60.0
"""So old is a temporary file at least that a killed process left; another machine's process may still be at work."""
MENDED_BY = {
    errno.ENOSPC: "free some disk space and resume",
    errno.EDQUOT: "free some of your disk quota and resume",
    errno.EACCES: "check who owns it and what its permissions are",
    errno.EPERM: "check who owns it and what its permissions are",
    errno.EROFS: "the file system is read-only: make it writable",
    errno.EMFILE: "allow more open files (`ulimit -n`)",
    errno.ENFILE: "the machine has too many open files",
    errno.EIO: "the disk may be failing",
    errno.ENOTDIR: "a file is where a folder should be: move it away",
    errno.EISDIR: "a folder is where a file should be: move it away",
}
OURS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What fails for a reason that no agent's file has: this machine's."""
Model = TypeVar("Model", bound=BaseModel)


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces. What digests and the ledger's chain are computed over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path, patterns: Iterable[str] = ("**/*",), but: Iterable[str] = ()) -> str:
    """SHA-256 (hex) over the names and bytes of all files that match, but these, whatever their order on disk."""
    left_out = {folder / name for name in but}
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()} - left_out)
    return digest_of([(str(path.relative_to(folder)), file_digest(path)) for path in paths])


def write_atomically(path: Path, text: str) -> None:
    """Writes to a neighbour, then renames: a reader, or a crash, sees the old file or the new one, never a half.

    Any number of threads and processes may write the same file: the last one's text stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with temporary.open("x", encoding="utf-8") as file:
            file.write(scrub(text))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cannot(f"write {path}", error) from error


def replace_folder(new: Path, target: Path) -> None:
    """Puts a folder that is whole where another may be; whoever opens `target` finds the old one or the new one.

    The kernel exchanges the two (Linux 3.15). On file systems that cannot, there is a moment without either.

    Raises:
        OSError: it cannot be done; both are as they were.
    """
    try:
        if not target.exists():
            with contextlib.suppress(OSError):  # there is one now, or it cannot be: then the exchange says why
                new.rename(target)
                return
        _exchange(new, target)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EPERM}:
            raise
        aside = new.with_name(f"{new.name}-old")
        target.rename(aside)
        new.rename(target)
        aside.rename(new)
    shutil.rmtree(new, ignore_errors=True)  # the old one now


def _exchange(one: Path, other: Path) -> None:
    at_fdcwd, exchange = -100, 2  # man 2 renameat2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), exchange):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


def cannot(what: str, error: OSError) -> InfrastructureError:
    """Says what this machine could not do, why, and how that is mended."""
    mend = MENDED_BY.get(error.errno or 0)
    return InfrastructureError(f"cannot {what}: {error.strerror or error}" + (f"; {mend}" if mend else ""))


@cache
def _sweep(folder: Path) -> None:
    """Removes what writers that were killed left in a folder; done once by each process."""
    for path in folder.glob(f".*{TEMPORARY}"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.removesuffix(TEMPORARY).rpartition(".")[2].partition("-")[0])
            if time.time() - path.lstat().st_mtime > STALE_S and not Path(f"/proc/{pid}").exists():
                path.unlink()


def write_model(path: Path, model: BaseModel) -> None:
    """A pydantic model as an indented JSON file."""
    write_atomically(path, model.model_dump_json(indent=2) + "\n")


def read_model(path: Path, kind: type[Model]) -> Model:
    """Reads what `write_model` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        IntegrityError: the file is not what was written.
    """
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise IntegrityError(f"{path} is not a valid {kind.__name__}: {explain(error)}") from error
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{path} is not a valid {kind.__name__}: {error}") from error


def explain(error: ValidationError) -> str:
    """A validation error in one line, with the key it is about."""
    return "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file.

    Raises:
        IntegrityError: a line is not a JSON object; the message names it.
    """
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise IntegrityError(f"{path}, line {number}: not JSON ({error.msg})") from error
            if not isinstance(row, dict):
                raise IntegrityError(f"{path}, line {number}: not a JSON object")
            rows.append(row)
    return rows


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rows as JSON Lines, whole or absent."""
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
