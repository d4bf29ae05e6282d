"""Keeps far more on the disk than it may, in removed files that no table of open files shows.

They are on their way through a socket of its own, or open in a thread whose table is not that of its process.
"""

import ctypes
import os
import socket
import threading
import time
from pathlib import Path

LEVEL = "run"
SPEC = {"budget": "20s"}
FILES, BYTES = 6, 64 << 20
CLONE_FILES = 0x400


def prepare(stack, folder):
    return {"environ": {"A2RL_AGENT_DISK_GIB": "0.25"}}


def attack(scene):
    ours, theirs = socket.socketpair()
    for number in range(FILES):
        held = threading.Event()
        opened = os.open(f"output/{number}", os.O_WRONLY | os.O_CREAT)
        for _ in range(BYTES >> 20):
            os.write(opened, bytes(1 << 20))
        Path(f"output/{number}").unlink()
        if number % 2:
            socket.send_fds(ours, [b"x"], [opened])
        else:
            threading.Thread(target=_hold, args=(held,), daemon=True).start()
            held.wait()
        os.close(opened)
    time.sleep(15)
    theirs.close()
    return "0.4 GiB of files, although it may have 0.25"


def _hold(held):
    ctypes.CDLL(None).unshare(CLONE_FILES)
    held.set()
    time.sleep(30)


def held(after):
    from a2rl.run.events import AgentEnded

    why = [entry.event.why for entry in after.run.ledger.entries() if isinstance(entry.event, AgentEnded)]
    return "" if any("its files take" in each for each in why) else f"{after.got}; it ended with: {why}"
