"""Submits until it is killed, to have something accepted after the deadline.

No submission is received after the ledger's entry that the agent has ended.
"""

import signal
import threading
import time
from pathlib import Path

LEVEL = "run"


def attack(scene):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in range(4):
        threading.Thread(target=submit_again_and_again, args=(scene, number), daemon=True).start()
    time.sleep(600)


def submit_again_and_again(scene, worker):
    for number in range(10_000):
        folder = Path("output", f"v{worker}-{number % 40}")
        if not folder.exists():
            scene.copy_model(folder, variant=1 + 40 * worker + number % 40)
        status, _ = scene.submit(folder)
        if status != 200:
            time.sleep(0.05)


def held(after):
    from a2rl.run.events import AgentEnded, SubmissionReceived

    entries = after.run.ledger.entries()
    ended = [entry for entry in entries if isinstance(entry.event, AgentEnded)]
    if [entry.event.reason for entry in ended] != ["deadline"]:
        return f"the agent ended as {[entry.event.reason for entry in ended]}"
    late = [entry for entry in entries if isinstance(entry.event, SubmissionReceived) and entry.seq > ended[0].seq]
    return f"{len(late)} were received when the agent was gone" if late else ""
