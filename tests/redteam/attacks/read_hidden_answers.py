"""Reads the answers of the eval set, by every possible path.

Only the grader can read the hidden data, whatever link or folder of /proc leads to it.
"""

import os
from pathlib import Path

LEVEL = "run"


def attack(scene):
    link = Path("code", "answers")
    link.symlink_to(scene.hidden)
    ways = [scene.hidden, str(link), f"/proc/self/root{scene.hidden}", f"/proc/{os.getppid()}/root{scene.hidden}"]
    reasons = []
    for way in ways:
        try:
            return Path(way).read_text()
        except OSError as error:
            reasons.append(f"{type(error).__name__}")
    raise PermissionError(", ".join(reasons))
