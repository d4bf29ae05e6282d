"""Gives files names with escape sequences, odd bytes and 255 characters, and changes them all the time.

The names are recorded as visible text, within limits; neither the recorder nor the report fails.
"""

import os
import time
from pathlib import Path

LEVEL = "run"
NAMES = (b"\xff\xfe", b"\x1b[2J\x1b]0;owned\x07", "\u202efdp".encode(), b"new\nline", b"x" * 255, b"'\"<script>", b"\r")
MOST = 80 << 20


def attack(scene):
    until, number = time.monotonic() + 6, 0
    while time.monotonic() < until:
        number += 1
        for folder in ("output", "code", ".home"):
            for name in NAMES:
                Path(folder, os.fsdecode(name)).write_text("x" * (number % 50))
    raise PermissionError("they were written down as text")


def held(after):
    told = (after.run.logs / "output.jsonl").read_bytes()
    if len(told) > MOST:
        return f"the log of its output takes {len(told) >> 20} MiB"
    if any(bad in told for bad in (b"\x1b", b"\xff", "\u202e".encode(), b"\r")):
        return "the log of its output holds what a terminal obeys"
    return "" if b"\n" in told else "its output was not recorded"
