"""Outlives its run under a process name that is not valid text.

Whatever its name, a process is found and ended, and its name is shown escaped.
"""

import ctypes
import os
import time

LEVEL = "run"
PR_SET_NAME = 15


def attack(scene):
    for name in (b"\xff\xfe) R 1", b"\n\x1b[2J", "\u202egnp.exe".encode()):
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
            time.sleep(120)
            os._exit(0)
    time.sleep(120)


def held(after):
    return f"{len(after.survivors)} processes outlived it" if after.survivors else ""
