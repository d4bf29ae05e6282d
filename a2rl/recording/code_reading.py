"""Reads the recorded states of an agent's code from the run's git repository `code/`.

Git only lists and prints objects here: no work tree, attributes, filters or hooks are used.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.linux.untrusted_folder import printable_name
from a2rl.recording.code_history import CODE, GIT_TIMEOUT_S, git_environment

MAX_FILE_BYTES = 400_000
MAX_FILES = 400


class State(NamedTuple):
    """A recorded state of the code."""

    commit: str
    at: float
    """Unix time, in whole seconds."""
    message: str


class RecordedFile(NamedTuple):
    """A file of a recorded state."""

    path: str
    """Bytes that are not UTF-8 are surrogates, as in all names of Python."""
    blob: str
    """The name that git gives to its content."""
    size: int
    """In bytes."""


def states(repository: Path) -> list[State]:
    """Returns the recorded states, oldest first; empty if there are none or git cannot read them."""
    lines = _git(repository, "log", "--reverse", "--format=%H %ct %s", CODE).decode("utf-8", "replace").splitlines()
    found = (line.split(" ", 2) for line in lines)
    return [State(commit, float(at), "".join(message)) for commit, at, *message in found]


def code_at(repository: Path, commit: str) -> dict[str, str]:
    """Returns the files of a state: text by path. Large files and those that are no text are left out."""
    wanted = {each.path: each.blob for each in _files(repository, commit) if each.size <= MAX_FILE_BYTES}
    chosen = dict(list(wanted.items())[:MAX_FILES])
    texts = {path: _git(repository, "cat-file", "blob", blob) for path, blob in chosen.items()}
    return {
        path.encode("utf-8", "replace").decode(): text.decode("utf-8", "replace")
        for path, text in texts.items()
        if b"\0" not in text
    }


def changed_copies(repository: Path) -> list[str]:
    """Returns the printable names of copies beside `.git` that differ from the last commit, sorted.

    They are there for people to read. A history that was brought here from elsewhere has none.
    """
    recorded = {each.path: each.blob for each in _files(repository, CODE)}
    here = {str(path.relative_to(repository)): _blob(path) for path in _copies(repository)}
    if not here:
        return []
    changed = (path for path in recorded.keys() | here.keys() if recorded.get(path) != here.get(path))
    return sorted(map(printable_name, changed))


def _files(repository: Path, commit: str) -> Iterator[RecordedFile]:
    for line in _git(repository, "ls-tree", "-r", "-l", "-z", commit).decode("utf-8", "surrogateescape").split("\0"):
        about, _, path = line.partition("\t")
        fields = about.split()
        if len(fields) == 4 and fields[1] == "blob" and fields[3].isdigit():
            yield RecordedFile(path, fields[2], int(fields[3]))


def _copies(repository: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(repository):
        if Path(folder) == repository and ".git" in names:
            names.remove(".git")
        yield from (Path(folder, name) for name in files)


def _blob(path: Path) -> str:
    """Returns the name that git gives to the content of a file."""
    content = b"" if path.is_symlink() else path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git(repository: Path, *arguments: str) -> bytes:
    git = repository / ".git"
    if not git.is_dir():
        return b""
    command = ["git", "--no-replace-objects", *arguments]
    try:
        done = subprocess.run(
            command, cwd="/", env=git_environment(git), capture_output=True, check=False, timeout=GIT_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout if done.returncode == 0 else b""
