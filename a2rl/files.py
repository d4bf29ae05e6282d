"""Files that are whole or absent, and digests of what is in them."""

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from a2rl.errors import InfrastructureError, IntegrityError
from a2rl.secrets import scrub

BLOCK = 1 << 20
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
    """Writes to a neighbour, then renames: a reader, or a crash, sees the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(scrub(text))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InfrastructureError(f"cannot write {path}: {error.strerror}; free some disk space and resume") from error


def write_beneath(root: Path, relative: str, text: str) -> None:
    """Writes a file in a folder that others can write to; links that they put in its way are removed, not followed."""
    *folders, name = Path(relative).parts
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            _clear(folder, here, stat.S_ISDIR)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=here)
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        _clear(name, here, lambda mode: False)
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=here)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
    finally:
        os.close(here)


def _clear(name: str, folder: int, may_stay: Callable[[int], bool]) -> None:
    """Removes what is there under a name, unless it may stay."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if may_stay(mode):
            return
        if stat.S_ISDIR(mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


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
