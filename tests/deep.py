"""Folders of so many levels that neither a path nor a recursion reaches their bottom."""

import os
from pathlib import Path

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def dig(place: Path, levels: int) -> None:
    """Makes a folder with so many below, each called `d`."""
    place.mkdir()
    here = os.open(place, OPEN)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", OPEN, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def fill_in(place: Path) -> None:
    """Removes the folders below again, from the bottom up; what else removes them takes minutes or fails."""
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
