"""Gives each agent its own user if the pipeline runs as root: an unused user id, and a name for it.

Contract: the agent's user is the owner of the run's workspace. Only root can change the owner, so a resumed run keeps
its user. User ids are chosen at random from 200 million that no system assigns, or from a few hundred in a container
that does not have those. An id that a process of this machine uses is never chosen.
"""

import os
import pwd
import secrets
import stat
from contextlib import suppress
from pathlib import Path

import psutil

from a2rl.linux.untrusted_folder import entries_below

NAME = "agent"
RANGES = (range(1_900_000_000, 2_100_000_000), range(60_578, 61_184))
"""User ids for agents; the second range is for containers with 65,536 users. Both are unused according to systemd's
"Users, Groups, UIDs and GIDs"."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_agent_user(user: int) -> bool:
    """Whether this user id is in the ranges for agents."""
    return any(user in numbers for numbers in RANGES)


def unused_user() -> int:
    """Returns a user id for agents that has no name and that no process of this machine uses."""
    numbers = next((numbers for numbers in RANGES if _is_mapped(numbers)), RANGES[-1])
    busy = _busy()
    while (user := numbers.start + secrets.randbelow(len(numbers))) in busy or _has_name(user):
        pass
    return user


def assign_user(workspace: Path) -> int:
    """Returns the user of a workspace, to whom all files there belong.

    If the workspace has no such user yet, or a running process uses the same id, a new one is chosen and made the owner
    of all files. Call this only while no agent works in the workspace.

    Raises:
        OSError: The owner of the workspace cannot be changed.
    """
    user = workspace.lstat().st_uid
    if not is_agent_user(user) or user in _busy():  # busy: the agent of a copy of this run is running
        user = unused_user()
        give_to_user(workspace, user)
    return user


def give_to_user(folder: Path, user: int) -> None:
    """Makes a user the owner of a folder and of everything below it; files with several hard links keep their owner.

    The folder itself is changed last. If it belongs to the user, everything below it has been changed where possible.
    """
    root = os.open(folder, FOLDER)
    try:
        for here, entry in entries_below(root, OSError):  # a folder was removed, or its path is too long
            with suppress(OSError):  # it was removed in the meantime
                _give_entry(here, entry.name, user)
        os.chown(root, user, user)
    finally:
        os.close(root)


def _give_entry(here: int, name: str, user: int) -> None:
    """Changes the owner of an entry.

    A process that outlived its run may rename entries at the same time, so the file that is checked is opened first.
    """
    opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    try:
        status = os.fstat(opened)
        if status.st_uid != user and (stat.S_ISDIR(status.st_mode) or status.st_nlink == 1):
            os.chown(f"/proc/self/fd/{opened}", user, user)
    finally:
        os.close(opened)


def write_user_database(folder: Path, user: int, home: Path) -> None:
    """Writes copies of /etc/passwd and /etc/group in which the user has a name, because programs look it up.

    Args:
        folder: The folder for both files; it is created if necessary.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    shell = next((path for path in ("/bin/bash", "/usr/bin/bash") if Path(path).exists()), "/bin/sh")
    lines = {"passwd": f"{NAME}:x:{user}:{user}:{NAME}:{home}:{shell}\n", "group": f"{NAME}:x:{user}:\n"}
    for name, line in lines.items():
        place = Path("/etc", name)
        known = place.read_text(encoding="utf-8", errors="surrogateescape") if place.exists() else ""
        others = [other for other in known.splitlines(keepends=True) if not other.startswith(f"{NAME}:")]
        target = folder / name
        target.write_text("".join(others) + line, encoding="utf-8", errors="surrogateescape")
        target.chmod(0o644)


def _busy() -> set[int]:
    return {user for process in psutil.process_iter(["uids"]) for user in process.info["uids"] or ()}


def _has_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def _is_mapped(numbers: range) -> bool:
    """Whether all of these user and group ids exist in this user namespace."""
    return all(_has_all(Path(f"/proc/self/{kind}_map"), numbers) for kind in ("uid", "gid"))


def _has_all(table: Path, numbers: range) -> bool:
    parts = [list(map(int, line.split())) for line in table.read_text().splitlines()]
    return any(start <= numbers.start and numbers.stop <= start + count for start, _, count in parts)
