"""Finds out when something in the agent's workspace was last changed, by timestamps that the agent cannot set."""

import math
import os
from pathlib import Path

from a2rl.linux.openat import open_beneath

MAX_ENTRIES = 1_000_000
"""The number of files and folders that are examined."""


def last_change(workspace: Path) -> float:
    """Returns when something below the workspace was last changed, in Unix seconds.

    It reads ctime, which the kernel sets and no process can choose. Folders are opened relative to the open workspace
    and links are not followed, so that nothing outside of it is read, whatever processes change meanwhile.

    Returns:
        The time; infinite if the agent left more entries than can be examined, or some that cannot be opened.
    """
    try:
        root = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return math.inf
    try:
        return _last_change_below(root)
    except (OSError, ValueError):
        return math.inf
    finally:
        os.close(root)


def _last_change_below(root: int) -> float:
    latest, seen, folders = 0.0, 0, ["."]
    while folders:
        path = folders.pop()
        folder = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    latest = max(latest, entry.stat(follow_symlinks=False).st_ctime)
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{path}/{entry.name}")
        finally:
            os.close(folder)
        if seen > MAX_ENTRIES:
            return math.inf
    return latest
