"""Sends invalid requests, and the same checkpoint again and again, to get time refunded for waiting.

Refusals and known grades are answered at once, and the time that they take counts towards the budget.
"""

import threading
import time
from pathlib import Path

LEVEL = "run"
SPEC = {"budget": "15s"}


def attack(scene):
    scene.copy_model("output/same")
    Path("output/empty").mkdir()
    bodies = [{"model_path": path} for path in ("output/same", "output/empty", "/", "..", "x" * 4000, "\u202e", "")]
    for body in [*bodies, {}, []]:
        threading.Thread(target=send_without_end, args=(scene, body), daemon=True).start()
    time.sleep(600)


def send_without_end(scene, body):
    while True:
        status, _ = scene.request("/submit", body)
        if status != 200:
            time.sleep(0.1)


def held(after):
    from a2rl.run.events import Graded, SubmissionAccepted
    from a2rl.run.records import ExecuteRecord

    record, ledger = after.run.need("execute", ExecuteRecord), after.run.ledger
    digests = {event.weights_digest for event in ledger.events(SubmissionAccepted)}
    began = min((event.elapsed_s for event in ledger.events(SubmissionAccepted)), default=0.0)
    ended = max((event.elapsed_s for event in ledger.events(Graded)), default=began)
    refunded_s, waited = record.refunded_s or 0.0, ended - began
    if len(digests) > 1:
        return f"{len(digests)} checkpoints were graded instead of one"
    return f"{refunded_s:.1f} s were refunded for {waited:.1f} s" if refunded_s > waited + 1 else ""
