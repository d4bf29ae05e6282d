"""Puts pipes, links to endless devices and huge sparse files where the pipeline reads, and submits them.

The pipeline does not wait for them, they fill neither disk nor memory, and the run ends in time.
"""

import os
from pathlib import Path

LEVEL = "run"
FOLDERS = ("code", "output", "output/v1", "output/v2", "output/v3", ".home", ".home/.codex/sessions")
MOST = 64 << 20


def attack(scene):
    for folder in FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in ("train.py", "rollout-1.jsonl", "notes"):
            Path(folder, name).symlink_to("/dev/zero")
        os.mkfifo(Path(folder, "pipe.py"))
        os.mkfifo(Path(folder, "rollout-2.jsonl"))
        _sparse(Path(folder, "sparse"))
    answers = []
    for folder, plant in (("output/v1", os.mkfifo), ("output/v2", _zeros), ("output/v3", _sparse)):
        Path(folder, "config.json").write_text("{}")
        plant(Path(folder, "model.safetensors"))
        answers.append(scene.submit(folder, timeout_s=8))
    raise PermissionError(f"answered {answers}")


def _zeros(path):
    path.symlink_to("/dev/zero")


def _sparse(path):
    for power in (40, 36, 33, 31):
        try:
            path.touch()
            os.truncate(path, 1 << power)
        except OSError:
            continue  # larger than the agent's limit on files
        return


def held(after):
    taken = 0
    for folder, folders, names in os.walk(after.run.root):
        if Path(folder) == after.run.root:
            folders[:] = [name for name in folders if name not in ("workspace", "given")]
        taken += sum(Path(folder, name).lstat().st_size for name in names)
    return f"the run's directory takes {taken >> 20} MiB" if taken > MOST else ""
