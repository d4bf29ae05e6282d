"""GGUF files as base models: converted once, into `models/gguf/<name>-<start of the file's digest>/`.

    converted(Path("model.gguf"), settings)

The conversion is gguf_conversion.py, in a process of its own.
"""

import glob
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from a2rl.core.errors import UsageError, last_words
from a2rl.core.files import expanded, file_digest, machine_failure
from a2rl.core.locks import file_lock
from a2rl.core.processes import child_environment, module_command, run_child
from a2rl.core.settings import Settings

TIMEOUT_S = 3600.0
LOCK_TIMEOUT_S = 2 * TIMEOUT_S
DIGEST_CHARS = 16


def gguf_file(name: str) -> Path | None:
    """Returns the GGUF file that a path names: the file, or the only one in a folder without a checkpoint.

    Raises:
        UsageError: The folder has several.
    """
    path = expanded(name)
    if path.suffix == ".gguf" and path.is_file():
        return path.resolve()
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise UsageError(f"{name} has {len(found)} GGUF files: name the one to use, such as {found[0]}")
    return found[0].resolve() if found else None


def converted_folder(gguf: Path, settings: Settings) -> Path:
    """Returns the folder of a GGUF file's checkpoint, which exists once it is made."""
    about = gguf.stat()
    return settings.models / "gguf" / f"{gguf.stem}-{_digest(gguf, about.st_mtime_ns, about.st_size)[:DIGEST_CHARS]}"


def converted(gguf: Path, settings: Settings) -> Path:
    """Returns the folder of a GGUF file's checkpoint, which is made on first use.

    Raises:
        UsageError: The file cannot be converted; the message says why.
        InfrastructureError: The checkpoint cannot be stored.
    """
    folder = converted_folder(gguf, settings)
    with file_lock(folder.with_name(f"{folder.name}.lock"), f"another process converts {gguf.name}", LOCK_TIMEOUT_S):
        if folder.is_dir():
            return folder
        try:
            with unfinished(folder) as making:
                if reason := convert_apart(gguf, making / "checkpoint", making / "log", settings):
                    raise UsageError(f"{gguf} cannot be used as a base model: {reason}")
                (making / "checkpoint").rename(folder)
        except OSError as error:
            raise machine_failure(f"store the checkpoint of {gguf.name} in {folder}", error) from error
    return folder


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A folder beside `target` for what is unfinished, for a caller that holds the target's lock.

    It is removed at the end, and those of processes that were killed are removed first.
    """
    for left in target.parent.glob(f".{glob.escape(target.name)}-*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@lru_cache
def _digest(gguf: Path, _mtime_ns: int, _size: int) -> str:
    return file_digest(gguf)


def convert_apart(gguf: Path, folder: Path, log: Path, settings: Settings) -> str:
    """Converts a file in a process of its own; returns why it cannot be converted, or an empty text."""
    command = module_command("a2rl.models.gguf_conversion", str(gguf), str(folder))
    status = run_child(command, child_environment(settings), log, TIMEOUT_S)
    if status == 0:
        for path in folder.iterdir():
            path.chmod(0o644)  # agents read it as another user; safetensors writes files for their owner alone
        return ""
    if status < 0:
        return "the process was killed, perhaps for lack of memory"
    return last_words(log.read_text(encoding="utf-8", errors="replace"))
