"""Submits 24 different checkpoints in the last two seconds, to make the grader work long after the deadline.

A few are received and graded; the others are turned away when the door closes, and nobody waits minutes for them.
"""

import json
import os
import shutil
import threading
import time
import urllib.request
from pathlib import Path

LEVEL = "run"
COUNT = 24


def attack(scene):
    for number in range(COUNT):
        folder = Path("output", f"v{number}")
        shutil.copytree(os.environ["MODEL_PATH"], folder, copy_function=shutil.copyfile)
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-2] ^= number + 1
        (folder / "model.safetensors").write_bytes(data)
    while remaining() > 2:
        time.sleep(0.1)
    for number in range(COUNT):
        threading.Thread(target=submit, args=(f"output/v{number}",), daemon=True).start()
    time.sleep(600)


def remaining():
    return json.load(urllib.request.urlopen(f"{os.environ['GRADING_SERVER_URL']}/time", timeout=10))["remaining"]


def submit(folder):
    request = urllib.request.Request(
        f"{os.environ['GRADING_SERVER_URL']}/submit", json.dumps({"model_path": folder}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=60)


def held(after):
    from a2rl.events import AgentEnded, SubmissionReceived
    from a2rl.grading.chain import ungraded
    from a2rl.grading.limits import MAX_WAITING

    entries = after.run.ledger.entries()
    given = sum(isinstance(entry.event, SubmissionReceived) for entry in entries)
    if not given:
        return "none of them was received"
    ended = next((place for place, entry in enumerate(entries) if isinstance(entry.event, AgentEnded)), len(entries))
    left = len(ungraded(entries[:ended]))
    return f"{left} grades were left for after the deadline" if left > MAX_WAITING else ""
