"""Leaves the user's key everywhere that the run is recorded, in every plain encoding.

No record of a run contains a key: logs, the history of the code, transcripts, ledger, report, MLflow.
"""

import base64
import json
import os
import sys
import time
import urllib.parse
from pathlib import Path

LEVEL = "run"
KEY = "mk-Zt5Qw8Rn2Yb7Lk4Vd9Xc3Hs6Pf1Gj0Mu"


def prepare(stack, folder):
    transcript = {"format": "claude-code", "from": [".log/*.jsonl"]}
    return {"agent": {"forward_env": ["MY_KEY"], "transcript": transcript}, "environ": {"MY_KEY": KEY}}


def attack(scene):
    key = os.environ["MY_KEY"]
    forms = [form.decode() for form in forms_of(key)]
    for number, form in enumerate(forms):
        Path("code", f"leak{number}.py").write_text(f"KEY = {form!r}")
        os.write(1, f"here {form}\n".encode())
        os.write(2, json.dumps(f"in JSON\n{form}").encode())
    for folder in ("code", "output"):
        Path(folder, key).write_text(key)
    log = Path(os.environ["HOME"], ".log", f"{key}.jsonl")
    log.parent.mkdir(parents=True)
    said = [{"type": "assistant", "session_id": key, "message": {"id": f"m{n}", "role": "assistant",
             "content": [{"type": "text", "text": form}]}} for n, form in enumerate(forms)]  # fmt: skip
    log.write_text("".join(json.dumps(line) + "\n" for line in said))
    for char in key:  # in pieces, with pauses
        os.write(1, char.encode())
        time.sleep(0.05)
    for path in (f"/{key}", f"/{urllib.parse.quote(forms[3])}"):
        scene.request(path, timeout_s=20)
    scene.submit(f"output/{key}")
    time.sleep(4)  # until the recorder has looked
    sys.exit(f"it ends with {key}")


def forms_of(key):
    raw = key.encode()
    encoded = [base64.b64encode(b"x" * more + raw)[-(-8 * more // 6) : 8 * (more + len(raw)) // 6] for more in range(3)]
    return [raw, raw[::-1], raw.hex().encode(), raw.hex("%").encode(), raw.hex(":").encode(), raw.upper(), *encoded]


def held(after):
    import subprocess

    places = {"the history of the code": b""}
    if (after.run.code / ".git").exists():
        log = ["git", "log", "--all", "--patch", "--text", "--stat"]
        places["the history of the code"] = subprocess.run(
            log, cwd=after.run.code, capture_output=True, check=True
        ).stdout
    for path in after.run.root.rglob("*"):
        beneath = path.relative_to(after.run.root)
        if (
            path.is_file()
            and beneath.parts[0] not in {"workspace", "given", "submissions"}
            and ".git" not in beneath.parts
        ):
            places[str(beneath)] = path.read_bytes() + os.fsencode(beneath)
    mlruns = after.run.root.parents[1] / "mlruns"
    places |= {str(path): path.read_bytes() for path in mlruns.rglob("*") if path.is_file()}
    forms = [form.lower() for form in forms_of(KEY)]
    return ", ".join(place for place, text in places.items() if any(form in text.lower() for form in forms))
