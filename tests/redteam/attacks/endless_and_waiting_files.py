"""Puts pipes, links to endless devices and huge sparse files wherever the pipeline reads, and submits them.

Nothing waits for them, nothing is filled by them, and the run ends in time.
"""

import json
import os
import urllib.request
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
    for folder, plant in (("output/v1", os.mkfifo), ("output/v2", _zeros), ("output/v3", _sparse)):
        Path(folder, "config.json").write_text("{}")
        plant(Path(folder, "model.safetensors"))
    answers = [_submit(folder) for folder in ("output/v1", "output/v2", "output/v3")]
    raise PermissionError("; ".join(answers))


def _zeros(path):
    path.symlink_to("/dev/zero")


def _sparse(path):
    for power in (40, 36, 33, 31):
        try:
            path.touch()
            os.truncate(path, 1 << power)
        except OSError:
            continue  # larger than a file of the agent's may be
        return


def _submit(folder):
    body = json.dumps({"model_path": folder}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["GRADING_SERVER_URL"] + "/submit", body, headers)
    try:
        return urllib.request.urlopen(request, timeout=8).read().decode()[:60]
    except OSError as error:
        return str(error)[:60]


def held(after):
    taken = 0
    for folder, folders, names in os.walk(after.run.root):
        if Path(folder) == after.run.root:
            folders[:] = [name for name in folders if name not in ("workspace", "given")]
        taken += sum(Path(folder, name).lstat().st_size for name in names)
    return f"the run's directory takes {taken >> 20} MiB" if taken > MOST else ""
