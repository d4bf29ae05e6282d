"""Fills its code folder with names that git treats specially: attributes, modules, filters, folders, odd names.

Git gets only bytes and names: it reads no setting and runs no program, and the code is recorded all the same.
"""

import os
import time
from pathlib import Path

LEVEL = "run"
MARK = "/tmp/a2rl-git-was-here"
NAMES = (b"git~1", b".git ", b".git.", b".GIT", b"new\nline", b"\xff", b"a\\.git", b"\x1b[2J", b"-rf", b"x" * 255)


def attack(scene):
    code = Path("code")
    for name in NAMES:
        Path(code, os.fsdecode(name)).write_text("x")
    for folder in (code / ".git", code / "module/.git"):
        (folder / "hooks").mkdir(parents=True)
        for hook in ("pre-commit", "post-index-change", "reference-transaction"):
            (folder / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {MARK}\n")
            (folder / "hooks" / hook).chmod(0o755)
        filters = f'[filter "evil"]\n\tclean = touch {MARK}\n'
        (folder / "config").write_text(f"[core]\n\tfsmonitor = touch {MARK}\n{filters}")
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (code / ".gitattributes").write_text("* text working-tree-encoding=UTF-16 filter=evil\n")
    (code / ".gitmodules").write_text("[submodule\n broken")
    (code / "train.py").write_bytes(b"lr = 1 \xff\r\n")
    time.sleep(5)
    raise PermissionError("git saw bytes and names alone")


def held(after):
    if Path(MARK).exists():
        Path(MARK).unlink()
        return "git ran what the agent planted"
    train = after.run.code / "train.py"
    return "" if train.exists() and train.read_bytes() == b"lr = 1 \xff\r\n" else "its code was not recorded"
