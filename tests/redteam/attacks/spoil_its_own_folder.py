"""Makes its own folder unusable, so that the pipeline fails and the run has no record.

Whatever the agent does to its own files, the run ends by itself and has a result.
"""

import os
import shutil
from pathlib import Path

LEVEL = "run"
SPEC = {"budget": "100s", "mode": "multi", "trials": 2}


def attack(scene):
    for name in (".home", ".tmp", "code", "output", "run_meta.json", "description.md", "instructions.md", "data"):
        for spoil in (remove, as_link, as_pipe):
            try:
                spoil(Path(name))
            except OSError:
                continue
    for path in (".", ".home", "code"):
        try:
            os.chmod(path, 0)  # noqa: PTH101
        except OSError:
            continue
    raise PermissionError("it spoiled what was its own")


def remove(path):
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def as_link(path):
    path.symlink_to("/dev/zero")


def as_pipe(path):
    path.unlink()
    os.mkfifo(path)


def held(after):
    from a2rl.run.records import GradeRecord

    record = after.run.read("grade", GradeRecord)
    return "" if record is not None and not record.improvement else f"the run has no result of zero: {record}"
