"""Leaves trees of ten thousand levels, and a hundred thousand files, where the pipeline looks.

Looking has limits: the run ends in time, and what lies beside them is still seen.
"""

import os
import shutil
import subprocess
from pathlib import Path

LEVEL = "run"
SPEC = {"mode": "multi", "trials": 2, "budget": "75s"}
LEVELS, FILES = 10_000, 20_000


def attack(scene):
    if Path("second").exists():
        raise PermissionError("the second attempt has begun")
    Path("second").touch()
    Path("code/train.py").write_text("lr = 1\n")
    shutil.rmtree(".home")
    Path("run_meta.json").unlink(missing_ok=True)
    for place in ("code/deep", "output/deep", ".home", "run_meta.json", ".profile"):
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
    seen = (after.run.code / "train.py").exists()
    subprocess.run(["rm", "-rf", after.run.workspace], check=False)  # nothing else can
    return "" if seen else "its code was not recorded"
