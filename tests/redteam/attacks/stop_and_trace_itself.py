"""Outlives its run by being stopped: a stopped process hears no request to end, and a traced one is another's.

Its end does not take its consent.
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
