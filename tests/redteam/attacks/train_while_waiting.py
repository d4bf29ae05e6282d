"""Submits one checkpoint after the other and continues to train in all of its processes while they are graded.

The time that a grade takes is refunded only if the agent does not compute meanwhile. This agent computes all the time,
so its budget ends when it would have ended without a submission.
"""

import multiprocessing
import threading

LEVEL = "run"
SPEC = {"budget": "20s"}
MAX_SHARE_REFUNDED = 0.15


def attack(scene):
    for _ in range(2):
        multiprocessing.get_context("fork").Process(target=compute, daemon=True).start()
    threading.Thread(target=scene.submit_variants, daemon=True).start()
    compute()


def compute():
    number = 1
    while True:
        number = number * 6364136223846793005 % 2**64


def held(after):
    from tests.redteam.look import refunded_too_much

    return refunded_too_much(after, MAX_SHARE_REFUNDED)
