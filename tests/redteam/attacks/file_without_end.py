"""Takes the whole disk with one file.

A file cannot be larger than what the agent may take of the disk.
"""

import os
from pathlib import Path

LEVEL = "run"


def attack(scene):
    with Path("output/large").open("wb") as file:
        free = os.fstatvfs(file.fileno())
        file.truncate(free.f_bavail * free.f_frsize)  # takes nothing: it has no blocks
    return "a file as large as all that is free"
