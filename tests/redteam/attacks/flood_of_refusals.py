"""Sends thousands of requests that are refused, for many reasons, so that ledger and report grow without limit.

The first refusals are recorded one by one, with a limited part of their reasons and names; the others are only counted.
Logs are limited. A valid submission afterwards is graded.
"""

import json
import threading
import time
from pathlib import Path

LEVEL = "run"
SPEC = {"budget": "2m"}  # it ends long before
BODIES = (
    {"model_path": "output/absent"}, {"model_path": "../../.."}, {"model_path": "/etc"}, {"model_path": "x" * 4000},
    {"model_path": "out\0put"}, {"model_path": "\u202e\x1b[2J" * 50}, {}, {"model_path": 5}, {"model_path": ""},
)  # fmt: skip
THREADS = 16
FOLDERS = 50
"""Folders that are submitted by every other thread, each with its own name and fault."""


def attack(scene):
    folder = scene.copy_model("output/honest")
    until, made = time.monotonic() + 20, []
    threads = [threading.Thread(target=flood, args=(scene, number, until, made)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status, answer = scene.submit(folder)
    if status != 200:
        return f"after {len(made)} refusals an honest submission is answered {status} {answer}"
    raise PermissionError(f"{len(made)} requests, answered {sorted(set(made))}")


def flood(scene, number, until, made):
    bodies = [{"model_path": faulty(f"{number}-{each}")} for each in range(FOLDERS if number % 2 else 0)]
    while time.monotonic() < until:
        body = bodies.pop() if bodies else BODIES[(number + len(made)) % len(BODIES)]
        made.append(scene.request("/submit", body, timeout_s=max(0.1, until - time.monotonic()))[0])


def faulty(name):
    folder = Path(f"output/{name}-<script>alert({name})<|script>\x1b[2J\u202e{'n' * 150}")
    folder.mkdir()
    kind = {"model_type": f"m{name}" * 20, f"k{name}": ["\x1b[2J"] * 500}
    (folder / "config.json").write_text(json.dumps(kind))
    (folder / ("x" * 200 + ".safetensors")).write_bytes(name.encode())
    return str(folder)


def held(after):
    from tests.redteam.look import not_graded

    entries, page = len(after.run.ledger.entries()), after.run.report.read_text()
    if entries > 200:
        return f"the ledger has {entries} entries"
    if len(page) > 1 << 20:
        return f"the report has {len(page)} characters"
    if "<script>alert(" in page or "\x1b" in page:
        return "the page has its script or its escapes"
    large = [path.name for path in after.run.logs.iterdir() if path.stat().st_size > 16 << 20]
    if large:
        return f"these logs are large: {large}"
    return not_graded(after)
