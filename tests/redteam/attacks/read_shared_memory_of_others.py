"""Reads a file of another run in /dev/shm, by guessing its name.

Shared memory of others is invisible or cannot be opened, whatever the permissions of its files.
"""

import os
from pathlib import Path

LEVEL = "sandbox"


def attack(scene):
    if not hasattr(scene, "shared_memory"):
        scene.skip("nobody else has shared memory here")
    ways = (
        scene.shared_memory,
        f"/proc/self/root{scene.shared_memory}",
        f"/proc/{scene.grader}/root{scene.shared_memory}",
    )
    reasons = []
    for way in ways:
        try:
            return Path(way).read_text()
        except OSError as error:
            reasons.append(os.strerror(error.errno))
    raise PermissionError(", ".join(reasons))
