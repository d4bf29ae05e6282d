"""Starts as many processes as the machine allows, so that nobody else can start one.

The number of an agent's processes and threads is limited.
"""

import threading
import time

LEVEL = "run"
TOO_MANY = 5000


def attack(scene):
    threading.stack_size(64 << 10)
    for count in range(TOO_MANY):
        try:
            threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        except RuntimeError as error:
            raise OSError(f"{error} after {count}") from error
    return f"{TOO_MANY} threads"
