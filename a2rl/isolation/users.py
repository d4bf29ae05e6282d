"""Users of their own for agents, where the pipeline runs as root: a number that nobody has, and a name for it.

Contract: the owner of a run's workspace is its user, which nobody but root can change, so a resumed run keeps it.
Numbers are drawn at random from 200 million that no system hands out (or, in a container that does not have those,
from a few hundred), and never one that a process of this machine has.
"""

import os
import pwd
import secrets
import stat
from contextlib import suppress
from pathlib import Path

import psutil

from a2rl.openat import open_beneath

NAME = "agent"
RANGES = (range(1_900_000_000, 2_100_000_000), range(60_578, 61_184))
"""The second one for containers with 65,536 users. Source: systemd's "Users, Groups, UIDs and GIDs", both unused."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_own(user: int) -> bool:
    """Whether this is a number for agents."""
    return any(user in numbers for numbers in RANGES)


def unused_user() -> int:
    """A number for agents that no process here has."""
    numbers = next((numbers for numbers in RANGES if _is_mapped(numbers)), RANGES[-1])
    busy = _busy()
    while (user := numbers.start + secrets.randbelow(len(numbers))) in busy or _has_name(user):
        pass
    return user


def user_of(workspace: Path) -> int:
    """The user of a workspace, to which all of it belongs from now on; to be called while no agent works there.

    Raises:
        OSError: it cannot be given away.
    """
    user = workspace.lstat().st_uid
    if not is_own(user) or user in _busy():  # busy: an agent of a copy of this run
        user = unused_user()
        give(workspace, user)
    return user


def give(folder: Path, user: int) -> None:
    """Gives a folder, with all that is below, to a user; what has a second name somewhere stays whose it is.

    The folder itself comes last: where it is the user's, all that could be given is.
    """
    root = os.open(folder, FOLDER)
    try:
        waiting = ["."]
        while waiting:
            with suppress(OSError):  # gone, or deeper than a path can say
                waiting += _give_entries(root, waiting.pop(), user)
        os.chown(root, user, user)
    finally:
        os.close(root)


def _give_entries(root: int, path: str, user: int) -> list[str]:
    """Gives what lies in a folder; returns the folders in it. A process that outlived its run may change names here."""
    found, here = [], open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(here) as entries:
            for entry in entries:
                with suppress(OSError):  # gone meanwhile
                    _give_entry(here, entry.name, user)
                if entry.is_dir(follow_symlinks=False):
                    found.append(f"{path}/{entry.name}")
    finally:
        os.close(here)
    return found


def _give_entry(here: int, name: str, user: int) -> None:
    """What is given is what was looked at, whatever has the name by then."""
    opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    try:
        status = os.fstat(opened)
        if status.st_uid != user and (stat.S_ISDIR(status.st_mode) or status.st_nlink == 1):
            os.chown(f"/proc/self/fd/{opened}", user, user)
    finally:
        os.close(opened)


def write_names(folder: Path, user: int, home: Path) -> Path:
    """Files `passwd` and `group` as in /etc, in which the user has a name: programs ask for it."""
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
    return folder


def _busy() -> set[int]:
    found: set[int] = set()
    for process in psutil.process_iter():
        try:
            found.update(process.uids())
        except (psutil.Error, OSError):
            continue
    return found


def _has_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def _is_mapped(numbers: range) -> bool:
    """Whether this namespace has these users and groups."""
    return all(_has_all(Path(f"/proc/self/{kind}_map"), numbers) for kind in ("uid", "gid"))


def _has_all(table: Path, numbers: range) -> bool:
    parts = [list(map(int, line.split())) for line in table.read_text().splitlines()]
    return any(start <= numbers.start and numbers.stop <= start + count for start, _, count in parts)
