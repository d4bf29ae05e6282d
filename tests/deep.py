"""Folders nested so deeply that neither a path nor a recursion can reach the deepest one."""

import os
from pathlib import Path

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def dig(place: Path, levels: int) -> None:
    """Makes a folder with as many nested folders, each named `d`."""
    place.mkdir()
    here = os.open(place, OPEN)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", OPEN, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def fill_in(place: Path) -> None:
    """Removes the nested folders, the deepest first. Other ways to remove them take minutes or fail."""
    here, levels = os.open(place, OPEN), 0
    while True:
        try:
            below = os.open("d", OPEN, dir_fd=here)
        except FileNotFoundError:
            break
        os.close(here)
        here, levels = below, levels + 1
    for _ in range(levels):
        above = os.open("..", OPEN, dir_fd=here)
        os.rmdir("d", dir_fd=above)
        os.close(here)
        here = above
    os.close(here)
