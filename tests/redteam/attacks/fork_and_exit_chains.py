"""Outlives its run as chains of processes, each of which forks once and exits.

By the time that a process is found, it has exited. Even so, the chains end soon after the run.
"""

import os
import signal
import time
from pathlib import Path

LEVEL = "run"
CHAINS = 8


def attack(scene):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.time() + 90  # other processes use this machine, too
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
