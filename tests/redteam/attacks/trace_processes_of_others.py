"""Attaches to the grader and to every other process of its user, like a debugger.

Tracing, and reading another process's memory or environment, is refused.
"""

import ctypes
import os
from pathlib import Path

LEVEL = "sandbox"
PTRACE_SEIZE = 0x4206


def attack(scene):
    libc, got = ctypes.CDLL(None, use_errno=True), []
    ancestors = {os.getpid(), os.getppid(), 1}
    pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()} | {scene.grader}
    for pid in sorted(pids - ancestors):
        try:
            if os.getsid(pid) == os.getsid(0):
                continue
            if b"secret" in Path(f"/proc/{pid}/environ").read_bytes():
                got.append(f"read the environment of {pid}")
        except OSError:
            pass
        if pid == scene.grader and libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0:
            got.append(f"attached to {pid}")
    if not got:
        raise PermissionError(f"none of {len(pids)} processes can be looked into")
    return "; ".join(got[:3])
