"""Atomic writes of files and folders, and digests of their contents."""

import codecs
import contextlib
import ctypes
import errno
import glob
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.core.secrets import scrub

TEMPORARY = ".tmp"
MAX_BYTES = 1 << 30
"""The most bytes of a file that is read into memory."""
STALE_AFTER_S = 60.0
"""Minimum age of a temporary file before it counts as abandoned: another machine's process may still write it."""
REMEDIES = {
    errno.ENOSPC: "free some disk space and try again",
    errno.EDQUOT: "free some of your disk quota and try again",
    errno.EACCES: "check who owns it and what its permissions are",
    errno.EPERM: "check who owns it and what its permissions are",
    errno.EROFS: "the file system is read-only: make it writable",
    errno.EMFILE: "allow more open files (`ulimit -n`)",
    errno.ENFILE: "the machine has too many open files",
    errno.EIO: "the disk may be failing",
    errno.ENOTDIR: "a file is where a folder should be: move it away",
    errno.EISDIR: "a folder is where a file should be: move it away",
}
MACHINE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Errors whose cause is this machine, never the file of an agent."""
Model = TypeVar("Model", bound=BaseModel)


class FrozenModel(BaseModel):
    """Values that do not change. Numbers are finite: JSON has no others."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class StrictModel(FrozenModel):
    """Values that do not change, such as those of a file of ours. Unknown names are errors."""

    model_config = ConfigDict(extra="forbid")


def expanded(path: str | Path) -> Path:
    """Returns a path with the home folder in place of a leading `~`; that of nobody stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises an error for nobody's


def canonical_json(value: Any) -> str:
    """Returns the unique JSON text of a value (sorted keys, no spaces), over which digests are computed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(value: Any) -> str:
    """Returns the SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Returns the SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path, patterns: Iterable[str] = ("**/*",), but: Iterable[str] = ()) -> str:
    """Returns a SHA-256 (hex) over the names and bytes of all files that match, in the order of their paths.

    Args:
        but: Relative paths of files to leave out.
    """
    left_out = {folder / name for name in but}
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()} - left_out)
    return digest_of([(str(path.relative_to(folder)), file_digest(path)) for path in paths])


def write_atomically(path: Path, text: str) -> None:
    """Writes a temporary file, then renames it: readers see the old file or the new one, also after a crash.

    Any number of threads and processes may write the same file; the last text stays. Known secrets are removed.

    Raises:
        InfrastructureError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        with temporary.open("x", encoding="utf-8") as file:
            file.write(scrub(text))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise machine_failure(f"write {path}", error) from error


def replace_folder(new: Path, target: Path) -> None:
    """Replaces the folder `target` by `new`; a process that opens `target` finds either the old folder or the new one.

    The kernel exchanges the two (Linux 3.15). On file systems that cannot do this, `target` is missing for a moment.

    Raises:
        OSError: The folder cannot be replaced; both are unchanged.
    """
    try:
        if not target.exists():
            with contextlib.suppress(OSError):  # it exists by now, or cannot be made; the exchange then reports why
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
    shutil.rmtree(new, ignore_errors=True)  # after the exchange, this is the old folder


def _exchange(one: Path, other: Path) -> None:
    at_fdcwd, exchange = -100, 2  # man 2 renameat2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), exchange):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


def machine_failure(what: str, error: OSError) -> InfrastructureError:
    """Makes an error that says what this machine could not do, why, and how to fix it.

    Args:
        what: The action that failed, such as "write records/grade.json".
    """
    remedy = REMEDIES.get(error.errno or 0)
    message = f"cannot {what}: {error.strerror or error}"
    return InfrastructureError(f"{message}; {remedy}" if remedy else message)


@cache
def _sweep(path: Path) -> None:
    """Removes what killed writers of a file have left beside it, once per process."""
    start = f".{path.name}."
    for left in path.parent.glob(f"{glob.escape(start)}*{TEMPORARY}"):
        writer = re.fullmatch("([0-9]+)-[0-9a-f]{8}", left.name.removeprefix(start).removesuffix(TEMPORARY))
        if writer is None:  # a file of the user's
            continue
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime > STALE_AFTER_S and not Path(f"/proc/{writer[1]}").exists():
                left.unlink()


def write_model(path: Path, model: BaseModel) -> None:
    """Writes a pydantic model as an indented JSON file, atomically."""
    write_atomically(path, model.model_dump_json(indent=2) + "\n")


def read_model(path: Path, kind: type[Model]) -> Model:
    """Reads what `write_model` wrote, here or in another version of a2rl, whose other fields are left out.

    Raises:
        FileNotFoundError: The file does not exist.
        IntegrityError: The file is not a valid `kind`.
        InfrastructureError: The file cannot be read.
    """
    try:
        return kind.model_validate_json(read_text(path), extra="ignore")
    except ValidationError as error:
        raise IntegrityError(f"{path} is not a valid {kind.__name__}: {validation_message(error)}") from error


def validation_message(error: ValidationError, one_or_several: Collection[str] = ()) -> str:
    """Returns a validation error as one line that names the invalid keys.

    Args:
        one_or_several: Keys whose value may be given without a list around it, so that its place in one says nothing.
    """
    problems = []
    for item in error.errors():
        text = "no such setting" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
        key, *rest = item["loc"] or ("",)
        path = ".".join(map(str, (key, *(rest[1:] if key in one_or_several else rest))))
        problems.append((path, text))
    return "; ".join(f"{path}: {text}" if path else text for path, text in problems)


def read_text(path: Path) -> str:
    """Returns the text of a file in UTF-8, with or without a byte order mark.

    Raises:
        FileNotFoundError: The file does not exist.
        IntegrityError: It has another encoding, or is too large; the message names the file.
        InfrastructureError: It cannot be read.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise IntegrityError(f"{path} has more than {MAX_BYTES:,} bytes, which no file of a2rl has")
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise machine_failure(f"read {path}", error) from error
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:2]
    try:
        if not is_utf16:
            return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise IntegrityError(
            f"{path} is not in UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8"
        ) from error
    raise IntegrityError(f"{path} is in UTF-16, not in UTF-8: save it as UTF-8")


def read_yaml(path: Path) -> Any:
    """Returns what is in a YAML file of the user's.

    Raises:
        FileNotFoundError: The file does not exist.
        UsageError: It is not valid, or has a key twice, of which one would be ignored; the message says where.
        IntegrityError: It is not a text in UTF-8.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Accepts each key once."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            for name, count in names.items():
                if count > 1 and name != "<<":  # which merges other mappings
                    raise yaml.constructor.ConstructorError(None, None, f"{name!r} is there twice", node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(read_text(path), Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the second: a date that there is not
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from error


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSON Lines file.

    Raises:
        IntegrityError: A line is not a JSON object, or the file is not UTF-8; the message says which.
    """
    rows = []
    for number, line in enumerate(io.StringIO(read_text(path), newline=None), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise IntegrityError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise IntegrityError(f"{path}, line {number}: not a JSON object")
        rows.append(row)
    return rows


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes rows as JSON Lines, atomically."""
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
