"""Submits 24 different checkpoints in the last two seconds, to make the grader work long after the deadline.

Those that arrive in time are received and graded, as far as the quota of grading time allows, and no others.
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
    from a2rl.grading.submission_states import open_receipts, ungraded, usual_s
    from a2rl.run.events import AgentEnded, SubmissionReceived

    entries = after.run.ledger.entries()
    given = sum(isinstance(entry.event, SubmissionReceived) for entry in entries)
    if not given:
        return "none of them was received"
    ended = next((place for place, entry in enumerate(entries) if isinstance(entry.event, AgentEnded)), len(entries))
    before = entries[:ended]
    left = len(ungraded(before)) + len(open_receipts(before))
    left_s, quota_s = (left - 1) * usual_s(after.run, before), after.run.spec.grading_quota_s
    return f"{left} grades were left for after the deadline, about {left_s:.0f} s" if left_s > quota_s else ""
