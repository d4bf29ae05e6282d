"""Trains in children that live for milliseconds and are never waited for, while its submissions wait for their grades.

No living process shows the CPU time of these children, but they count as work all the same: some of them exist whenever
the meter takes a sample. So the waiting time is not refunded.
"""

import os
import signal
import threading
import time

LEVEL = "run"
SPEC = {"budget": "20s"}
MAX_SHARE_REFUNDED = 0.25
LIFE_S = 0.015


def attack(scene):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them, and adds their time to no other process
    threading.Thread(target=scene.submit_variants, daemon=True).start()
    while True:
        if os.fork() == 0:
            compute_for(LIFE_S)
        time.sleep(LIFE_S)


def compute_for(seconds):
    end, number = time.monotonic() + seconds, 1
    while time.monotonic() < end:
        number = number * 6364136223846793005 % 2**64
    os._exit(0)


def held(after):
    from tests.redteam.look import refunded_too_much

    return refunded_too_much(after, MAX_SHARE_REFUNDED)
