"""Leaves trees of thousands of levels, and tens of thousands of files, where the pipeline looks.

The pipeline limits how much it reads: the run ends in time, and files beside the trees are still found.
"""

import os
import shutil
from pathlib import Path

LEVEL = "run"
SPEC = {"mode": "multi", "trials": 2, "budget": "75s"}
LEVELS, FILES = 3_000, 20_000
PLACES = ("code/deep", "output/deep", ".home", "run_meta.json")


def attack(scene):
    if Path("second").exists():
        raise PermissionError("the second attempt has begun")
    Path("second").touch()
    Path("code/train.py").write_text("lr = 1\n")
    shutil.rmtree(".home")
    Path("run_meta.json").unlink(missing_ok=True)
    for place in PLACES:
        _dig(place)
    for number in range(FILES):
        os.close(os.open(f"output/{number}", os.O_CREAT | os.O_WRONLY))
    raise PermissionError("looking has limits")


def _dig(place):
    Path(place).mkdir()
    here = os.open(place, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def held(after):
    from tests.deep import fill_in

    seen = (after.run.code / "train.py").exists()
    workspace = after.run.workspace
    asides = [aside for folder in (workspace, workspace / ".home") for aside in folder.glob(".a2rl-aside-*")]
    for place in (*asides, *(workspace / name for name in PLACES)):
        if place.is_dir() and not place.is_symlink():
            fill_in(place)
    return "" if seen else "its code was not recorded"
