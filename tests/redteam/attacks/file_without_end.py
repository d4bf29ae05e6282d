"""Fills the disk with one file.

A file cannot be larger than the disk space that the agent may use.
"""

import os
from pathlib import Path

LEVEL = "run"


def attack(scene):
    with Path("output/large").open("wb") as file:
        free = os.fstatvfs(file.fileno())
        file.truncate(free.f_bavail * free.f_frsize)  # it has no blocks, so it takes no space
    return "a file as large as all that is free"
