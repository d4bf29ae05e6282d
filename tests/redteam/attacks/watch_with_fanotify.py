"""Learns the names of hidden files from fanotify, which ordinary users may use as well since Linux 5.13.

There is no fanotify inside.
"""

import ctypes
import os
import platform
from pathlib import Path

LEVEL = "sandbox"
LIBC = ctypes.CDLL(None, use_errno=True)
INIT, MARK = {"x86_64": (300, 301), "aarch64": (262, 263)}.get(platform.machine(), (0, 0))
REPORT_FILES, REPORT_NAMES, ADD, ON_CHILDREN, OPENED = 0x200, 0xC00, 1, 0x08000000, 0x20


def attack(scene):
    if not INIT:
        scene.skip("numbers of another machine")
    for flags in (REPORT_FILES | REPORT_NAMES, REPORT_FILES, 0):
        group = LIBC.syscall(INIT, flags, os.O_RDONLY)
        if group >= 0:
            break
    else:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    folder = os.fsencode(Path(scene.hidden).parent)
    if LIBC.syscall(MARK, group, ADD, ctypes.c_ulong(OPENED | ON_CHILDREN), -100, folder):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "told of every hidden file that is opened"
