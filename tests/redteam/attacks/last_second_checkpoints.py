"""Submits 24 different checkpoints in the last two seconds, to make the grader work long after the deadline.

A few are received and graded; the others are refused after the deadline, and the run does not wait minutes for them.
"""

import threading
import time

LEVEL = "run"
COUNT = 24


def attack(scene):
    for number in range(COUNT):
        scene.copy_model(f"output/v{number}", variant=number + 1)
    while scene.request("/time")[1]["remaining"] > 2:
        time.sleep(0.1)
    for number in range(COUNT):
        threading.Thread(target=scene.submit, args=(f"output/v{number}",), daemon=True).start()
    time.sleep(600)


def held(after):
    from a2rl.grading.submission_states import ungraded
    from a2rl.run.events import AgentEnded, SubmissionReceived
    from a2rl.run.grading_limits import MAX_WAITING

    entries = after.run.ledger.entries()
    given = sum(isinstance(entry.event, SubmissionReceived) for entry in entries)
    if not given:
        return "none of them was received"
    ended = next((place for place, entry in enumerate(entries) if isinstance(entry.event, AgentEnded)), len(entries))
    left = len(ungraded(entries[:ended]))
    return f"{left} grades were left for after the deadline" if left > MAX_WAITING else ""
