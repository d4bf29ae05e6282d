"""Floods the run with submissions that are refused, each for another reason and with a name of its own.

Of the reasons and names a limited part is recorded and shown; the rest is counted. An honest submission is graded.
"""

import json
import time
from pathlib import Path

LEVEL = "run"
SPEC = {"budget": "1m"}
COUNT = 400


def attack(scene):
    until = time.monotonic() + 20
    refused = 0
    for number in range(COUNT):
        folder = Path(f"output/{number}-<script>alert({number})<|script>\x1b[2J\u202e{'n' * 150}")
        folder.mkdir()
        (folder / "config.json").write_text(
            json.dumps({"model_type": f"m{number}" * 20, f"k{number}": ["\x1b[2J"] * 500})
        )
        (folder / ("x" * 200 + ".safetensors")).write_bytes(b"\xff" * number)
        refused += scene.submit(folder)[0] in range(400, 500)
        if time.monotonic() > until:
            break
    status, answer = scene.submit(scene.copy_model("output/honest"))
    if status != 200:
        return f"after {refused} refusals an honest submission is answered {status} {answer}"
    raise PermissionError(f"{refused} were refused")


def held(after):
    from a2rl.run.events import Graded

    page = after.run.report.read_text()
    if len(after.run.ledger.entries()) > 200:
        return f"the ledger has {len(after.run.ledger.entries())} entries"
    if len(page) > 2 << 20:
        return f"the report has {len(page)} characters"
    if "<script>alert(" in page or "\x1b" in page:
        return "the page has its script or its escapes"
    return "" if after.run.ledger.events(Graded) else after.got or after.stopped_by
