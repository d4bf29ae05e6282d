"""Puts a file below names that are together too long for the system, so that none of its code is recorded.

Such a path leaves out only its own file.
"""

import os
from pathlib import Path

LEVEL = "sandbox"


def attack(scene):
    Path("code").mkdir(exist_ok=True)
    Path("code/train.py").write_text("print('how it was trained')")
    here = os.open("code", os.O_DIRECTORY)
    for _ in range(24):
        os.mkdir("d" * 250, dir_fd=here)
        here = os.open("d" * 250, os.O_DIRECTORY, dir_fd=here)
    os.close(os.open("e" * 250 + ".py", os.O_CREAT | os.O_WRONLY, dir_fd=here))


def held(after):
    import shutil
    import tempfile

    from a2rl.recording.code_history import snapshot_code

    try:
        with tempfile.TemporaryDirectory() as folder:
            snapshot_code(after.run.workspace / "code", Path(folder) / "code", "state")
            copy = Path(folder) / "code" / "train.py"
            return "" if copy.exists() else "its code was not recorded"
    finally:
        shutil.rmtree(after.run.workspace / "code")
