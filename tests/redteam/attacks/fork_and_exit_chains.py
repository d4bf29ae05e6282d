"""Outlives its run as chains of processes, each of which lives for one fork.

Whoever looks for them finds the last one gone; all the same they end with the run, and soon.
"""

import os
import signal
import time
from pathlib import Path

LEVEL = "run"
CHAINS = 8


def attack(scene):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.time() + 90  # this machine is not the attack's alone
    for number in range(CHAINS):
        if os.fork() == 0:
            while time.time() < end:
                if os.fork():
                    os._exit(0)
                os.setsid()
                Path(f"output/alive-{number}").touch()
            os._exit(0)
    time.sleep(120)


def held(after):
    first = newest(after)
    time.sleep(1.0)
    return "" if newest(after) == first else "a chain goes on after the end of the run"


def newest(after):
    return max((path.lstat().st_mtime_ns for path in (after.run.workspace / "output").glob("alive-*")), default=0)
