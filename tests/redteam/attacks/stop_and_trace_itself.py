"""Outlives its run by stopping itself (a stopped process does not handle SIGTERM) or by being traced by another.

The processes are ended even if they do not cooperate.
"""

import ctypes
import os
import signal
import time

LEVEL = "run"


def attack(scene):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        ctypes.CDLL(None).ptrace(0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(120)
        os._exit(0)
    end = time.time() + 90
    while time.time() < end:
        os.kill(os.getpid(), signal.SIGSTOP)


def held(after):
    return f"{len(after.survivors)} processes outlived it" if after.survivors else ""
