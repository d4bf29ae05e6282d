"""Sends thousands of requests that are refused, so that the ledger and the report of the run grow without limit.

The first refusals are recorded one by one, the others only counted. Logs are limited. A valid submission afterwards is
graded.
"""

import threading
import time

LEVEL = "run"
SPEC = {"budget": "2m"}  # it ends long before
BODIES = (
    {"model_path": "output/absent"}, {"model_path": "../../.."}, {"model_path": "/etc"}, {"model_path": "x" * 4000},
    {"model_path": "out\0put"}, {"model_path": "\u202e\x1b[2J" * 50}, {}, {"model_path": 5}, {"model_path": ""},
)  # fmt: skip


def attack(scene):
    folder = scene.copy_model("output/honest")
    until, made = time.monotonic() + 12, []
    threads = [threading.Thread(target=flood, args=(scene, number, until, made)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status, _ = scene.submit(folder)
    if status != 200:
        return f"after {len(made)} refusals an honest submission is answered {status}"
    raise PermissionError(f"{len(made)} requests, answered {sorted(set(made))}")


def flood(scene, number, until, made):
    while time.monotonic() < until:
        body = BODIES[(number + len(made)) % len(BODIES)]
        made.append(scene.request("/submit", body, timeout_s=max(0.1, until - time.monotonic()))[0])


def held(after):
    entries = len(after.run.ledger.entries())
    if entries > 200:
        return f"the ledger has {entries} entries"
    if after.run.report.stat().st_size > 1 << 20:
        return f"the report has {after.run.report.stat().st_size} bytes"
    large = [path.name for path in after.run.logs.iterdir() if path.stat().st_size > 16 << 20]
    if large:
        return f"these logs are large: {large}"
    return after.got or ""
