"""The history of the agent's code: a git repository in the run directory, with one commit for each recorded state.

Texts in the workspace's `code/` are copied out and committed. Links, hard links, large and binary files, and names that
some system treats as `.git` are left out. Git gets only the names and contents of the files: fast-import makes the
commit without a work tree, an index, attributes, filters or hooks, and only our own configuration applies. The files
beside `.git` are our copies, for people to read.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from a2rl.core.errors import InfrastructureError, IntegrityError, UnclearFaultError
from a2rl.core.files import MACHINE_ERRORS, machine_failure
from a2rl.core.locks import file_lock
from a2rl.core.printable import printable
from a2rl.core.processes import KILLED
from a2rl.core.secrets import scrub, scrub_file
from a2rl.linux.untrusted_folder import Entry, FileChangedError, Limits, UntrustedFolder
from a2rl.sandbox.storage import bytes_below

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 2000
MAX_BYTES = 64 << 20
"""Maximum size of all files together."""
MAX_HISTORY_BYTES = 1 << 30
"""No state is recorded any more when the history has reached this size."""
BINARY_BYTES = 4096
"""A file with a zero byte in these first bytes is no text: it is not recorded as code, nor searched for eval items."""
LIMITS = Limits(entries=10_000, depth=32, seconds=5.0)
LOCK_TIMEOUT_S = 60.0
MAX_MESSAGE_CHARS = 300
Missed = Callable[[str], object]
"""Called with the path, in the code folder, of each file that should be recorded and is not."""
GIT_TIMEOUT_S, CHECK_TIMEOUT_S = 60, 600
"""A check reads every object, which takes a slow disk long; it is not part of a run."""
CODE, SEEN = "refs/heads/main", "refs/a2rl/seen"
NOT_CODE = frozenset({".git", "__pycache__"})
AUTHOR = "a2rl <a2rl@localhost>"
GIT_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "gc.auto": "0",
    # With these checks, one forbidden name would make the whole commit fail; _is_git_name leaves such names out.
    "core.protectNTFS": "false",
    "core.protectHFS": "false",
}
ENVIRONMENT = {
    "PATH": os.defpath, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_CONFIG_COUNT": str(len(GIT_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{place}": key for place, key in enumerate(GIT_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{place}": value for place, value in enumerate(GIT_SETTINGS.values())},
}  # fmt: skip

_OWN_SETTING = re.compile(
    r"\s*+(\[core\]|(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|symlinks) = (true|false|0))?\s*"
)
_NOT_OURS = ("config.worktree", "commondir", "objects/info/alternates")


class GitMissingError(InfrastructureError):
    """Git cannot be run on this machine, which says nothing about a history."""


def git_program() -> str:
    """Returns the path of git: of the system's, or else of the user's, such as one of conda.

    Raises:
        GitMissingError: There is none.
    """
    found = shutil.which("git", path=os.defpath) or shutil.which("git")
    if found is None:
        raise GitMissingError("git is not installed: install it, because it keeps the agent's code")
    return found


def git_version() -> str:
    """Returns the version of git, which is run as for a history.

    Raises:
        InfrastructureError: Git is missing or failed.
    """
    return _run_git(ENVIRONMENT, ("version",), GIT_TIMEOUT_S).decode("utf-8", "replace").strip()


def git_environment(git: Path) -> dict[str, str]:
    """Returns the environment for git, whose settings are ours alone, since those of a repository can run programs.

    Raises:
        InfrastructureError: The repository has settings of its own, or is elsewhere.
    """
    config = git / "config"
    lines = config.read_text("utf-8", "replace").splitlines() if config.is_file() else []
    odd = [name for name in _NOT_OURS if os.path.lexists(git / name)]
    if odd or git.is_symlink() or not all(map(_OWN_SETTING.fullmatch, lines)):
        raise UnclearFaultError(f"{git} has settings that a2rl does not make, so git is not run with it")
    return {**ENVIRONMENT, "HOME": str(git), "GIT_DIR": str(git)}


def code_state(code: Path, on_missed: Missed = lambda path: None) -> tuple[Entry, ...]:
    """Returns the names, sizes and times of the code files. Comparing them shows cheaply whether a snapshot is needed.

    Args:
        on_missed: Called for what is beyond a limit or cannot be read.

    Raises:
        OSError: The agent has replaced its code folder by something that we do not open, such as a link.
    """
    try:
        with _opened(code) as folder:
            return tuple(_files(folder, on_missed))
    except FileNotFoundError:
        return ()


def snapshot_code(
    code: Path,
    repository: Path,
    message: str,
    timeout_s: float = LOCK_TIMEOUT_S,
    on_missed: Missed = lambda path: None,
) -> str | None:
    """Commits the present state of the code; returns the commit, or None if there is no code that can be read, or no
    room for it in the history.

    Args:
        repository: The folder of the git repository; it is created if necessary.
        timeout_s: How long to wait for another process that makes a snapshot at the same time.
        on_missed: As for `code_state`; not called for what is left out because of its kind.

    Raises:
        InfrastructureError: Git is missing or failed, the disk is full, or the other process takes too long.
    """
    lock, meanwhile = repository.with_name(".code.lock"), "the history of the agent's code is locked"
    try:
        with file_lock(lock, meanwhile, timeout_s, heeds_stop=False):
            copied = [] if is_full(repository) else _copy(code, repository, on_missed)
            return _commit(copied, repository, message) if copied else None
    except OSError as error:
        raise machine_failure("record the agent's code", error) from error


def is_full(repository: Path) -> bool:
    """Whether the history has reached its limit, so that later states are not in it."""
    return bytes_below([str(repository / ".git/objects")]).used >= MAX_HISTORY_BYTES


def commits(repository: Path) -> list[str]:
    """Returns the recorded commits, the newest first; none if no code was recorded.

    Raises:
        InfrastructureError: Git is missing, or the repository cannot be read.
    """
    git = repository / ".git"
    if not git.is_dir() or not _git(git, "for-each-ref", CODE):
        return []
    return _git(git, "rev-list", CODE).split()


def check_history(repository: Path) -> None:
    """Checks that every object of the history has the content that its name stands for.

    Raises:
        InfrastructureError: Git is missing, or an object was changed or removed; the message says which.
    """
    if (repository / ".git").is_dir():
        arguments = ("fsck", "--full", "--no-dangling", "--no-progress")
        _run_git(git_environment(repository / ".git"), arguments, CHECK_TIMEOUT_S)


def export_history(repository: Path, target: Path) -> bool:
    """Writes the whole history into one file, a git bundle; returns False if there is none.

    Raises:
        InfrastructureError: Git is missing or failed.
    """
    if not commits(repository):
        return False
    _git(repository / ".git", "bundle", "create", "--quiet", str(target), CODE)
    return True


def import_history(bundle: Path, repository: Path) -> None:
    """Makes a new repository from a git bundle, which may be hostile: git checks each object that it takes.

    Raises:
        IntegrityError: The bundle is damaged.
        InfrastructureError: Git is missing or takes too long.
    """
    git = repository / ".git"
    _git(git, "init", "--quiet", "--template=", "--initial-branch=main", str(repository))
    options = ("--quiet", "--no-tags", "--update-head-ok")
    try:
        _git(git, "-c", "transfer.fsckObjects=true", "fetch", *options, str(bundle), f"+{CODE}:{CODE}")
    except InfrastructureError as error:
        if isinstance(error.__cause__, subprocess.CalledProcessError):
            raise IntegrityError(str(error)) from error
        raise


def _opened(code: Path) -> UntrustedFolder:
    with UntrustedFolder.at(code.parent) as workspace:
        return workspace.folder(code.name)


def _files(code: UntrustedFolder, on_missed: Missed) -> list[Entry]:
    """Returns the files to record, breadth first, up to the limits on their number and size."""
    chosen: list[Entry] = []
    total = 0
    for entry in code.walk("", LIMITS, NOT_CODE, on_missed):
        if entry.is_file and entry.size <= MAX_FILE_BYTES and not any(map(_is_git_name, entry.path.split("/"))):
            total += entry.size
            if len(chosen) == MAX_FILES or total > MAX_BYTES:
                on_missed(entry.path)
                break
            chosen.append(entry)
    return chosen


def _is_git_name(name: str) -> bool:
    """Whether git on any operating system could treat this name as `.git`; see path.c and utf8.c in its source."""
    seen = "".join(char for char in name if unicodedata.category(char) != "Cf").casefold()
    return bool(re.match(r"(\.git|git~\d+)[ .]*($|:|\\)", seen)) or "\\.git" in seen


def _copy(code: Path, repository: Path, on_missed: Missed) -> list[str]:
    """Replaces our copies of the previous state by copies of the present one; returns their names."""
    try:
        with _opened(code) as folder:
            if not (files := _files(folder, on_missed)):
                return []
            repository.mkdir(exist_ok=True)
            for old in repository.iterdir():
                if old.name != ".git":
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            names = _names([entry.path for entry in files])
            return [name for path, name in names.items() if _copy_file(folder, path, repository / name, on_missed)]
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        return []  # there is no code, or the agent has replaced it by something that we do not open


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Returns the names under which files are recorded: without secrets, and in folders of their own where two files
    would otherwise have one name."""
    names: dict[str, str] = {}
    files, folders = set[PurePosixPath](), set[PurePosixPath]()
    clean = {path: scrub(path) for path in paths}
    number = 0  # it is never used again, so that a thousand files with one name take a thousand steps
    for path in sorted(paths, key=lambda each: clean[each] != each):
        name = PurePosixPath(clean[path])
        while name in files or name in folders or files & set(name.parents):
            number += 1
            name = PurePosixPath(f"same-name-{number}", clean[path])
        files.add(name)
        folders |= set(name.parents)
        names[path] = str(name)
    return names


def _copy_file(code: UntrustedFolder, path: str, target: Path, on_missed: Missed) -> bool:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        code.copy(path, target, MAX_FILE_BYTES)
        with target.open("rb") as copy:
            is_text = b"\0" not in copy.read(BINARY_BYTES)
        if not is_text:
            target.unlink()
            return False
        scrub_file(target)
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        with suppress(OSError):  # its path may be longer than any that the system takes
            target.unlink(missing_ok=True)
        if not isinstance(error, FileNotFoundError | FileChangedError):
            on_missed(path)
        return False  # it may have been removed or replaced in the meantime, because the agent continues to work
    return True


def _commit(paths: Sequence[str], repository: Path, message: str) -> str:
    git = repository / ".git"
    for left in (*git.glob("*.lock"), *git.glob("refs/**/*.lock"), *git.glob("objects/**/tmp_*")):
        left.unlink(missing_ok=True)  # left by a process that was killed: we hold the lock, so no other one is running
    # This also completes a repository whose creation was interrupted.
    _git(git, "init", "--quiet", "--template=", "--initial-branch=main", str(repository))
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
    """Writes the commit in the input format of fast-import; see `git help fast-import`."""
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
    """Quotes a name as in C: quotes, backslashes and all bytes that are not visible ASCII become octal escapes."""
    return b"".join(
        bytes([byte]) if 0x20 <= byte < 0x7F and byte not in b'"\\' else b"\\%03o" % byte for byte in os.fsencode(name)
    )


def run_git(git: Path, *arguments: str, stdin: IO[bytes] | None = None) -> bytes:
    """Runs git with a repository of recorded code, and returns what it prints.

    Raises:
        InfrastructureError: Git is missing or failed, or the repository has settings of its own.
    """
    return _run_git(git_environment(git), arguments, GIT_TIMEOUT_S, stdin)


def _run_git(
    environment: Mapping[str, str], arguments: Sequence[str], timeout_s: float, stdin: IO[bytes] | None = None
) -> bytes:
    try:
        return subprocess.run(
            [git_program(), "--no-replace-objects", *arguments],
            cwd="/",
            env=environment,
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=timeout_s,
        ).stdout
    except OSError as error:
        raise GitMissingError(f"git cannot be run: {error.strerror}") from error
    except subprocess.SubprocessError as error:
        output = (error.stderr or b"").decode("utf-8", "replace").strip()[-200:] or str(error)  # type: ignore[attr-defined]
        name = next(each for each in arguments if not each.startswith("-") and "=" not in each)
        kind = InfrastructureError if getattr(error, "returncode", None) in KILLED else UnclearFaultError
        raise kind(f"the agent's code history cannot be used: git {name}: {output}") from error


def _git(git: Path, *arguments: str, stdin: IO[bytes] | None = None) -> str:
    return run_git(git, *arguments, stdin=stdin).decode("ascii", "replace").strip()
