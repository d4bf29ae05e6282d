"""Reads the recorded states of an agent's code, and their differences, from the run's git repository `code/`.

Git only lists, prints and compares objects here: no work tree, attributes, filters, hooks, external programs or
conversions are used. Names and lines are those of the agent, so they are hostile text.
"""

import hashlib
import os
import re
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.core.model_text import encodable
from a2rl.core.processes import tied_to_parent
from a2rl.linux.untrusted_folder import printable_name
from a2rl.recording import code_history
from a2rl.recording.code_history import CODE, GitMissingError, git_environment, git_program, run_git

MAX_FILE_BYTES = 400_000
MAX_FILES = 400
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git's name for a folder without files."""
REVISION = re.compile(r"[0-9a-f]{40}")
MAX_DIFF_BYTES = 256 << 10
"""What is read of one diff."""
MAX_LIST_BYTES = (code_history.MAX_FILES + 1) * (4096 + 128)
"""What is read of one list of files: more than one has that a2rl made, as no name there is longer than the system's."""
MAX_MEMORY_BYTES = 2 << 30
DIFF_TIMEOUT_S = 20.0
"""Not reached where git works: the limits on bytes come first, so a page is the same when it is drawn again."""
LARGE_BYTES = 100_000
"""Git compares no larger file line by line, which can take seconds, but says that it differs as a binary one would."""
DIFF_OPTIONS = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=3")


class State(NamedTuple):
    """A recorded state of the code."""

    commit: str
    at: float
    """Unix time, in whole seconds; 0 if it is no number, as in a history that somebody else made."""


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
    lines = _git(repository, "log", "--reverse", "--format=%H %ct", CODE).decode().splitlines()
    return [State(commit, float(at or 0)) for commit, _, at in (line.partition(" ") for line in lines)]


def code_at(repository: Path, commit: str) -> dict[str, str]:
    """Returns the files of a state: text by path. Large files and those that are no text are left out."""
    wanted = {each.path: each.blob for each in _files(repository, commit) if each.size <= MAX_FILE_BYTES}
    chosen = dict(list(wanted.items())[:MAX_FILES])
    texts = {path: _git(repository, "cat-file", "blob", blob) for path, blob in chosen.items()}
    return {encodable(path): text.decode("utf-8", "replace") for path, text in texts.items() if b"\0" not in text}


def changed_copies(repository: Path) -> list[str]:
    """Returns the printable names of copies beside `.git` that differ from the last commit, sorted.

    They are there for people to read. A history that was brought here from elsewhere has none.

    Raises:
        IntegrityError: The last commit has more files than are recorded.
    """
    here = {str(path.relative_to(repository)): _blob(path) for path in _copies(repository)}
    if not here:
        return []
    recorded = {each.path: each.blob for each in _files(repository, CODE)}
    if len(recorded) > code_history.MAX_FILES:
        raise IntegrityError("the last commit of code/ has more files than a2rl records")
    changed = (path for path in recorded.keys() | here.keys() if recorded.get(path) != here.get(path))
    return sorted(map(printable_name, changed))


def _files(repository: Path, commit: str) -> Iterator[RecordedFile]:
    """Yields the files of a state; of one that is not ours, not all of them."""
    if not (repository / ".git").is_dir():
        return
    command = ("ls-tree", "-r", "-l", "-z", commit)
    listed = _beginning(repository, command, MAX_LIST_BYTES, code_history.GIT_TIMEOUT_S)
    for line in (listed or b"").decode("utf-8", "surrogateescape").split("\0"):
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
    git_environment(git)  # refuses a repository with settings of its own
    with suppress(InfrastructureError, OSError):
        return run_git(git, *arguments)
    return b""


class CodeDiff(NamedTuple):
    """The difference between two states of the code."""

    lines: tuple[str, ...]
    """As git prints it."""
    is_whole: bool
    """False if there is more than was read."""


def code_diff(repository: Path, before: str | None, after: str) -> CodeDiff | None:
    """Returns what changed from one revision to another; None if git cannot tell, as after the code was deleted."""
    names = (before or EMPTY_TREE, after)
    if not all(REVISION.fullmatch(name) for name in names) or not (repository / ".git").is_dir():
        return None
    command = ("-c", f"core.bigFileThreshold={LARGE_BYTES}", "diff", *DIFF_OPTIONS, *names, "--")
    data = _beginning(repository, command, MAX_DIFF_BYTES, DIFF_TIMEOUT_S, tied_to_parent)
    if data is None:
        return None
    text = data[:MAX_DIFF_BYTES].decode("utf-8", "replace")
    return CodeDiff(tuple(text.split("\n")[: -1 if text.endswith("\n") else None]), len(data) <= MAX_DIFF_BYTES)


def _beginning(
    repository: Path,
    arguments: Sequence[str],
    most: int,
    timeout_s: float,
    wrapped: Callable[[list[str]], list[str]] = list,
) -> bytes | None:
    """Returns what git prints, up to one byte more than `most`, and then ends it; None if git fails.

    Its time and memory are limited: of folders in one another, a small history of others can have billions of files,
    and some commands list all of them before they print any.
    """
    environment = git_environment(repository / ".git")
    try:
        command = wrapped([git_program(), "--no-replace-objects", *arguments])
        with subprocess.Popen(
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            timer = threading.Timer(timeout_s, process.kill)
            timer.start()
            try:
                with suppress(OSError, ValueError):  # it has ended, or has a lower limit
                    hard = resource.prlimit(process.pid, resource.RLIMIT_AS)[1]
                    resource.prlimit(process.pid, resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))
                data = process.stdout.read(most + 1)
                return data if len(data) > most or process.wait() == 0 else None
            finally:
                timer.cancel()
                process.kill()
    except (OSError, subprocess.SubprocessError, GitMissingError):
        return None
