"""The history of the agent's code: a git repository in the run directory, one commit for each state that was seen.

Regular files of the workspace's `code/` are copied out and committed; links, hard links, large files and whatever a
system takes for git's own folder are left out. Git sees only the bytes and the names: the commit is made by
fast-import, without a work tree, an index, attributes, filters, hooks or any configuration but ours. What lies beside
`.git` are our copies, for people to read.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from a2rl.beneath import Entry, Folder, Limits
from a2rl.errors import InfrastructureError
from a2rl.files import OURS, cannot
from a2rl.printable import printable
from a2rl.secrets import scrub, scrub_file

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 2000
MAX_BYTES = 64 << 20
"""Of all files together."""
LIMITS = Limits(entries=10_000, depth=32, seconds=5.0)
LOCK_TIMEOUT_S = 60.0
MAX_MESSAGE_CHARS = 300
GIT_TIMEOUT_S = 60
CODE, SEEN = "refs/heads/main", "refs/a2rl/seen"
NOT_CODE = frozenset({".git", "__pycache__"})
AUTHOR = "a2rl <a2rl@localhost>"
SWITCHED_OFF = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "gc.auto": "0",
    "core.protectNTFS": "false",  # what these refuse would end the commit; _is_gits leaves it out first
    "core.protectHFS": "false",
}
ENVIRONMENT = {
    "PATH": os.defpath, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_CONFIG_COUNT": str(len(SWITCHED_OFF)),
    **{f"GIT_CONFIG_KEY_{place}": key for place, key in enumerate(SWITCHED_OFF)},
    **{f"GIT_CONFIG_VALUE_{place}": value for place, value in enumerate(SWITCHED_OFF.values())},
}  # fmt: skip


def code_state(code: Path) -> tuple[Entry, ...]:
    """Which files there are, how large and how old: cheap to compare, to tell whether a snapshot is worth it.

    Raises:
        OSError: the agent has made of its code something that we do not open.
    """
    try:
        with _opened(code) as folder:
            return tuple(_files(folder))
    except FileNotFoundError:
        return ()


def snapshot_code(code: Path, repository: Path, message: str, timeout_s: float = LOCK_TIMEOUT_S) -> str | None:
    """Commits the present state of the code and returns the commit; None where there is none that can be read.

    Args:
        code: a folder of the agent's, in its workspace.
        timeout_s: how long to wait for another process that does the same.

    Raises:
        InfrastructureError: git is missing or failed, the disk is full, or the other process takes too long.
    """
    try:
        repository.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(repository.with_name(".code.lock"), timeout=timeout_s):
            copied = _copy(code, repository)
            return _commit(copied, repository, message) if copied else None
    except Timeout as error:
        raise InfrastructureError("the agent's code could not be recorded: its history is locked") from error
    except OSError as error:
        raise cannot("record the agent's code", error) from error


def _opened(code: Path) -> Folder:
    with Folder.at(code.parent) as workspace:
        return workspace.folder(code.name)


def _files(code: Folder) -> list[Entry]:
    """The files that count, those near the top first."""
    chosen: list[Entry] = []
    total = 0
    for entry in code.walk("", LIMITS, skip=NOT_CODE):
        if entry.is_file and entry.size <= MAX_FILE_BYTES and not any(map(_is_gits, entry.path.split("/"))):
            total += entry.size
            if len(chosen) == MAX_FILES or total > MAX_BYTES:
                break
            chosen.append(entry)
    return chosen


def _is_gits(name: str) -> bool:
    """Whether git, here or where the repository is copied to, could take it for `.git`: see its path.c, utf8.c."""
    seen = "".join(char for char in name if unicodedata.category(char) != "Cf").casefold()
    return bool(re.match(r"(\.git|git~\d+)[ .]*($|:|\\)", seen)) or "\\.git" in seen


def _copy(code: Path, repository: Path) -> list[str]:
    """Our copies of the code take the place of those of the state before; returns their names."""
    try:
        with _opened(code) as folder:
            if not (files := _files(folder)):
                return []
            repository.mkdir(exist_ok=True)
            for old in repository.iterdir():
                if old.name != ".git":
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            names = {entry.path: scrub(entry.path) for entry in files}
            return [name for path, name in names.items() if _copy_file(folder, path, repository / name)]
    except OSError as error:
        if error.errno in OURS:
            raise
        return []  # there is none, or the agent has made of it something that we do not open


def _copy_file(code: Folder, path: str, target: Path) -> bool:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        code.copy(path, target, MAX_FILE_BYTES)
        scrub_file(target)
    except OSError as error:
        if error.errno in OURS:
            raise
        return False  # gone or replaced meanwhile: the agent goes on working
    return True


def _commit(paths: Sequence[str], repository: Path, message: str) -> str:
    git = repository / ".git"
    for left in (*git.glob("*.lock"), *git.glob("refs/**/*.lock"), *git.glob("objects/**/tmp_*")):
        left.unlink(missing_ok=True)  # of a process that was killed; the lock is ours
    _git(git, "init", "--quiet", "--template=", "--initial-branch=main", str(repository))  # mends one half made, too
    before, tree_before, *_ = [*_git(git, "for-each-ref", "--format=%(objectname) %(tree)", CODE).split(), "", ""]
    with tempfile.TemporaryFile(dir=repository.parent) as stream:
        _describe(paths, repository, message, before, stream)
        stream.seek(0)
        _git(git, "fast-import", "--quiet", "--force", stdin=stream)
    now, tree = _git(git, "rev-parse", SEEN, f"{SEEN}^{{tree}}").split()
    if tree == tree_before:
        return before
    _git(git, "update-ref", CODE, now)
    return now


def _describe(paths: Sequence[str], repository: Path, message: str, parent: str, stream: IO[bytes]) -> None:
    """Writes the commit in fast-import's language: see `git help fast-import`."""
    text = printable(scrub(message), MAX_MESSAGE_CHARS).encode()
    stream.write(
        f"commit {SEEN}\ncommitter {AUTHOR} {time.time():.0f} +0000\ndata {len(text)}\n".encode() + text + b"\n"
    )
    if parent:
        stream.write(f"from {parent}\n".encode())
    stream.write(b"deleteall\n")
    for path in paths:
        content = (repository / path).read_bytes()
        stream.write(b'M 100644 inline "' + _quoted(path) + f'"\ndata {len(content)}\n'.encode() + content + b"\n")


def _quoted(name: str) -> bytes:
    """As in C: a quote, a backslash and every byte that is not visible ASCII by its number."""
    return b"".join(
        bytes([byte]) if 0x20 <= byte < 0x7F and byte not in b'"\\' else b"\\%03o" % byte for byte in os.fsencode(name)
    )


def _git(git: Path, *arguments: str, stdin: IO[bytes] | None = None) -> str:
    environment = {**ENVIRONMENT, "HOME": str(git), "GIT_DIR": str(git)}
    try:
        done = subprocess.run(
            ["git", "--no-replace-objects", *arguments],
            cwd="/",
            env=environment,
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=GIT_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise InfrastructureError("git is not installed; install it and resume") from error
    except subprocess.SubprocessError as error:
        said = (error.stderr or b"").decode("utf-8", "replace").strip()[-200:] or str(error)  # type: ignore[attr-defined]
        raise InfrastructureError(f"the agent's code could not be recorded: git {arguments[0]}: {said}") from error
    return done.stdout.decode("ascii", "replace").strip()
