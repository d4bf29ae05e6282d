"""Has thousands of requests refused, so that the ledger and the report of the run grow without end.

The first refusals are written down, of the others the number; logs are bounded; an honest submission afterwards is
graded.
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
SPEC = {"budget": "30s"}
BODIES = (
    {"model_path": "output/absent"}, {"model_path": "../../.."}, {"model_path": "/etc"}, {"model_path": "x" * 4000},
    {"model_path": "out\0put"}, {"model_path": "\u202e\x1b[2J" * 50}, {}, {"model_path": 5}, {"model_path": ""},
)  # fmt: skip


def attack(scene):
    folder = Path("output", "honest")
    shutil.copytree(os.environ["MODEL_PATH"], folder, copy_function=shutil.copyfile)
    until, made = time.monotonic() + 12, []
    threads = [threading.Thread(target=flood, args=(number, until, made)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status = submit({"model_path": str(folder)})
    if status != 200:
        return f"after {len(made)} refusals an honest submission is answered {status}"
    raise PermissionError(f"{len(made)} requests, answered {sorted(set(made))}")


def flood(number, until, made):
    while time.monotonic() < until:
        made.append(submit(BODIES[(number + len(made)) % len(BODIES)], timeout=max(0.1, until - time.monotonic())))


def submit(body, timeout=60):
    request = urllib.request.Request(
        f"{os.environ['GRADING_SERVER_URL']}/submit", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        return urllib.request.urlopen(request, timeout=timeout).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


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
