"""Writes summaries of its run that are endless, pipes, links to hidden files, or bombs of lines.

Only the beginnings of regular files of its own are kept.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

LEVEL = "sandbox"


def attack(scene):
    os.makedirs("reports", exist_ok=True)  # noqa: PTH103
    for name in ("summary.md", "summary.jsonl", "reports/summary.md", "reports/summary.jsonl"):
        with suppress(OSError):
            Path(name).unlink()
    with Path("summary.md").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo("summary.jsonl")
    Path("reports/summary.md").symlink_to(scene.hidden)
    lines = ["[" * 3_900, '{"score": ' + "9" * 3_900 + "}", *[json.dumps({"status": "x" * 3_900})] * 100_000]
    Path("reports/summary.jsonl").write_text("\n".join(lines) + "\n" * 1_000_000)


def held(after):
    from a2rl.recording.trajectory import MAX_BYTES, keep_summary, read_summary
    from tests.redteam.look import slow

    if late := slow(5, lambda: keep_summary(after.run), lambda: read_summary(after.run)):
        return late
    if "reports/summary.md" in read_summary(after.run):
        return "it was shown a hidden file"
    kept = sum(path.stat().st_size for path in (after.run.root / "claims").rglob("*.*"))
    return f"{kept} bytes are kept" if kept > 4 * MAX_BYTES else ""
