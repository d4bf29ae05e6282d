"""The history of the agent's code: a git repository in the run directory, one commit for each state that was seen.

Regular files of the workspace's `code/` are copied in and committed; links, large files and git's own folders are left
out. The repository, its configuration and its hooks are out of the agent's reach.
"""

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from a2rl.errors import InfrastructureError
from a2rl.printable import printable
from a2rl.secrets import scrub, scrub_file

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 2000
MAX_BYTES = 64 << 20
"""Of all files together."""
LOCK_TIMEOUT_S = 60
MAX_MESSAGE_CHARS = 300
IDENTITY = {
    "GIT_AUTHOR_NAME": "a2rl", "GIT_AUTHOR_EMAIL": "a2rl@localhost", "GIT_COMMITTER_NAME": "a2rl",
    "GIT_COMMITTER_EMAIL": "a2rl@localhost", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


def code_state(code: Path) -> tuple[tuple[str, int, int], ...]:
    """Which files there are, how large and how old: cheap to compare, to tell whether a snapshot is worth it."""
    return tuple((str(path), status.st_size, status.st_mtime_ns) for path, status in _regular_files(code))


def snapshot_code(code: Path, repository: Path, message: str) -> str | None:
    """Commits the present state of `code` and returns the commit; None if there is no code.

    Raises:
        InfrastructureError: git is missing or failed.
    """
    repository.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(repository.with_name(".code.lock"), timeout=LOCK_TIMEOUT_S):
            return _commit([path for path, _ in _regular_files(code)], code, repository, message)
    except Timeout as error:
        raise InfrastructureError("the agent's code could not be recorded: its history is locked") from error


def _commit(files: list[Path], code: Path, repository: Path, message: str) -> str | None:
    if not files:
        return None
    repository.mkdir(exist_ok=True)
    _git(repository, "init", "--quiet", "--initial-branch=main")  # again and again: mends one that is half made
    (repository / ".git" / "index.lock").unlink(missing_ok=True)  # of a process that was killed; the lock is ours
    for old in repository.iterdir():
        if old.name != ".git":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for file in files:
        target = repository / scrub(str(file.relative_to(code)))
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # gone or replaced meanwhile: the agent goes on working
            shutil.copyfile(file, target, follow_symlinks=False)
            scrub_file(target)
    _git(repository, "add", "--all", "--force")
    if _git(repository, "status", "--porcelain"):
        _git(repository, "commit", "--quiet", "--no-verify", "--message", printable(scrub(message), MAX_MESSAGE_CHARS))
    return _git(repository, "rev-parse", "HEAD")


def _regular_files(code: Path) -> Iterator[tuple[Path, os.stat_result]]:
    found, total = 0, 0
    if code.is_symlink():
        return
    for folder, subfolders, names in os.walk(code, followlinks=False):
        subfolders[:] = sorted(name for name in subfolders if name.lower() not in {".git", "__pycache__"})
        for name in sorted(names):
            path = Path(folder, name)
            try:
                status = path.lstat()
            except OSError:
                continue  # gone meanwhile
            if name.lower() == ".git" or not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                continue
            found, total = found + 1, total + status.st_size
            if found > MAX_FILES or total > MAX_BYTES:
                return
            yield path, status


def _git(repository: Path, *arguments: str) -> str:
    environment = {"PATH": os.defpath, "HOME": str(repository), **IDENTITY}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=repository, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
    except FileNotFoundError as error:
        raise InfrastructureError("git is not installed; install it and resume") from error
    except subprocess.SubprocessError as error:
        raise InfrastructureError(f"the agent's code could not be recorded: {error}") from error
    return done.stdout.strip()
