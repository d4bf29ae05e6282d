"""Learns the names of hidden files by fanotify, which ordinary users may use since Linux 5.13.

fanotify is unavailable in the sandbox.
"""

import ctypes
import os
import platform
from functools import partial
from pathlib import Path

LEVEL = "sandbox"
INIT, MARK = {"x86_64": (300, 301), "aarch64": (262, 263)}.get(platform.machine(), (0, 0))
REPORT_FILES, REPORT_NAMES, ADD, ON_CHILDREN, OPENED = 0x200, 0xC00, 1, 0x08000000, 0x20


def attack(scene):
    if not INIT:
        scene.skip("system call numbers of another architecture")
    folder = os.fsencode(Path(scene.hidden).parent)

    def watch(flags):
        group = scene.syscall(INIT, flags, os.O_RDONLY)
        scene.syscall(MARK, group, ADD, ctypes.c_ulong(OPENED | ON_CHILDREN), -100, folder)

    ways = {"names": REPORT_FILES | REPORT_NAMES, "files": REPORT_FILES, "descriptors": 0}
    return scene.try_each({name: partial(watch, flags) for name, flags in ways.items()})
