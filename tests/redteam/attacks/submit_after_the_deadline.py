"""Goes on submitting until it is killed, to have something accepted after the deadline.

Nothing is received when the ledger says that the agent is gone, and what was received before comes to its end.
"""

import json
import os
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

LEVEL = "run"


def attack(scene):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in range(4):
        threading.Thread(target=submit_again_and_again, args=(number,), daemon=True).start()
    time.sleep(600)


def submit_again_and_again(worker):
    for number in range(10_000):
        folder = Path("output", f"v{worker}-{number % 40}")
        if not folder.exists():
            shutil.copytree(os.environ["MODEL_PATH"], folder, copy_function=shutil.copyfile)
            change(folder / "model.safetensors", 40 * worker + number % 40)
        try:
            submit(folder)
        except OSError:
            time.sleep(0.05)


def change(path, number):
    data = bytearray(path.read_bytes())
    data[-2] ^= number + 1
    path.write_bytes(data)


def submit(folder):
    request = urllib.request.Request(
        f"{os.environ['GRADING_SERVER_URL']}/submit", json.dumps({"model_path": str(folder)}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    return urllib.request.urlopen(request, timeout=60).status


def held(after):
    from a2rl.events import AgentEnded, SubmissionReceived

    entries = after.run.ledger.entries()
    ended = [entry for entry in entries if isinstance(entry.event, AgentEnded)]
    if [entry.event.reason for entry in ended] != ["deadline"]:
        return f"the agent ended as {[entry.event.reason for entry in ended]}"
    late = [entry for entry in entries if isinstance(entry.event, SubmissionReceived) and entry.seq > ended[0].seq]
    return f"{len(late)} were received when the agent was gone" if late else ""
