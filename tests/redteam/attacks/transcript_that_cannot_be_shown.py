"""Leaves a transcript and a log that no page can hold: deep, endless, with numbers without end and with scripts.

What is too large or too deep is left out of the page. The result stands, and nothing in the page runs.
"""

import json
from pathlib import Path

LEVEL = "sandbox"


def attack(scene):
    Path("code").mkdir(exist_ok=True)
    Path("code", "train.py").write_text("import trl\n")
    call = {"tool_call_id": "1", "function_name": "f", "arguments": {"command": "DEEP"}}
    steps = [
        {"step_id": 1, "source": "agent", "message": "</pre><script>alert(1)</script>\x1b[2J", "tool_calls": [call]}
    ]
    steps += [{"step_id": n, "source": "agent", "message": "y" * 900} for n in range(2, 20_000)]
    text = json.dumps({"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": steps})
    text = text.replace('"DEEP"', "[" * 900 + "]" * 900).replace('"step_id": 7,', f'"step_id": {"9" * 9_000},')
    Path("trajectory.json").write_text(text)
    print("a.b.Error: reward: " + "9" * 9_999 + "\n" + "loss " * 500_000 + "\n" + "a." * 500_000 + "Error")  # noqa: T201


def held(after):
    from tests.redteam.look import shown

    return shown(after)
