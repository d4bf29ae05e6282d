"""Removes all permissions from its own folders, so that the pipeline fails in them and the run has no result.

The run ends like any other, in time and with all its records.
"""

from pathlib import Path

LEVEL = "run"
SPEC = {"mode": "multi", "trials": 2, "budget": "75s"}
FOLDERS = ("code", "output", ".home/.codex", ".home", ".tmp", ".")


def attack(scene):
    Path(".home/.codex").mkdir(parents=True, exist_ok=True)
    Path("code/train.py").write_text("lr = 1\n")
    for folder in FOLDERS:
        Path(folder).chmod(0)
    raise PermissionError("the pipeline does without")
