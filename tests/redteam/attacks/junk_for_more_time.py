"""Sends junk without end, and the same checkpoint again and again, to have time given back for waiting.

What is refused is not waited for, what was graded already is answered at once, and all of that is charged.
"""

import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

LEVEL = "run"
SPEC = {"budget": "15s"}


def attack(scene):
    shutil.copytree(os.environ["MODEL_PATH"], "output/same", copy_function=shutil.copyfile)
    Path("output/empty").mkdir()
    bodies = [{"model_path": path} for path in ("output/same", "output/empty", "/", "..", "x" * 4000, "\u202e", "")]
    for body in [*bodies, {}, []]:
        threading.Thread(target=send_without_end, args=(json.dumps(body).encode(),), daemon=True).start()
    time.sleep(600)


def send_without_end(body):
    while True:
        request = urllib.request.Request(
            f"{os.environ['GRADING_SERVER_URL']}/submit", body, {"Content-Type": "application/json"}
        )
        try:
            urllib.request.urlopen(request, timeout=60).read()
        except OSError:
            time.sleep(0.1)


def held(after):
    from a2rl.events import Graded, SubmissionAccepted
    from a2rl.records import ExecuteRecord

    record, ledger = after.run.need("execute", ExecuteRecord), after.run.ledger
    digests = {event.weights_digest for event in ledger.events(SubmissionAccepted)}
    began = min((event.elapsed_s for event in ledger.events(SubmissionAccepted)), default=0.0)
    ended = max((event.elapsed_s for event in ledger.events(Graded)), default=began)
    given_back, waited = record.refunded_s or 0.0, ended - began
    if len(digests) > 1:
        return f"{len(digests)} checkpoints were graded instead of one"
    return f"{given_back:.1f} s were given back for {waited:.1f} s" if given_back > waited + 1 else ""
