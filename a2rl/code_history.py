"""The history of the agent's code: a git repository in the run directory, one commit per state that was submitted.

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

from a2rl.errors import InfrastructureError

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 2000
IDENTITY = {
    "GIT_AUTHOR_NAME": "a2rl", "GIT_AUTHOR_EMAIL": "a2rl@localhost", "GIT_COMMITTER_NAME": "a2rl",
    "GIT_COMMITTER_EMAIL": "a2rl@localhost", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


def snapshot_code(code: Path, repository: Path, message: str) -> str | None:
    """Commits the present state of `code` and returns the commit; None if there is no code.

    Raises:
        InfrastructureError: git is missing or failed.
    """
    files = list(_regular_files(code))
    if not files:
        return None
    repository.mkdir(parents=True, exist_ok=True)
    _git(repository, "init", "--quiet", "--initial-branch=main")  # again and again: mends one that is half made
    (repository / ".git" / "index.lock").unlink(missing_ok=True)  # of a service that was killed; we are alone
    for old in repository.iterdir():
        if old.name != ".git":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for file in files:
        target = repository / file.relative_to(code)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # gone or replaced meanwhile: the agent goes on working
            shutil.copyfile(file, target, follow_symlinks=False)
    _git(repository, "add", "--all", "--force")
    if _git(repository, "status", "--porcelain"):
        _git(repository, "commit", "--quiet", "--no-verify", "--message", message)
    return _git(repository, "rev-parse", "HEAD")


def _regular_files(code: Path) -> Iterator[Path]:
    found = 0
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
            found += 1
            if found > MAX_FILES:
                return
            yield path


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
