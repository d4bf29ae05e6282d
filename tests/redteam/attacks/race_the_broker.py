"""Swaps names, links, folders and open files while the broker decides whether a change is allowed.

The broker changes exactly the file that it checked, and reads nothing from the agent's memory twice.
"""

# The attack makes the system calls as directly as Python can.
# ruff: noqa: PTH101, PTH116, PTH119

import ctypes
import os
import random
import threading
import time
from pathlib import Path

LEVEL = "sandbox"
LIBC = ctypes.CDLL(None, use_errno=True)
SECONDS = 1.5


def attack(scene):
    Path("own").write_text("")
    Path("place").mkdir(exist_ok=True)
    (Path("place") / Path(scene.hidden).name).write_text("")
    before, over = os.stat(scene.hidden).st_mode, threading.Event()
    own = os.fsencode(Path("own").absolute())
    hidden = os.fsencode(scene.hidden)
    length = max(len(own), len(hidden)) + 1
    names = [name.ljust(length, b"\0") for name in (own, hidden)]
    buffer = ctypes.create_string_buffer(names[0], length)
    number, sources = os.open("own", os.O_RDONLY), [os.open("own", os.O_RDONLY), os.open(scene.hidden, os.O_PATH)]
    swappers = [
        lambda: ctypes.memmove(buffer, random.choice(names), length),
        lambda: relink("swapped", random.choice(("own", scene.hidden))),
        lambda: relink("folder", random.choice(("place", str(Path(scene.hidden).parent)))),
        lambda: os.dup2(random.choice(sources), number),
    ]
    threads = [threading.Thread(target=keep, args=(swap, over)) for swap in swappers]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            LIBC.chmod(buffer, before ^ 0o020 & 0o7777)
            LIBC.chmod(b"swapped", before ^ 0o020 & 0o7777)
            LIBC.chmod(b"folder/" + os.path.basename(hidden), before ^ 0o020 & 0o7777)
            LIBC.fchmod(number, before ^ 0o020 & 0o7777)
            LIBC.chmod(b"/proc/self/fd/%d" % number, before ^ 0o020 & 0o7777)
            if os.stat(scene.hidden).st_mode != before:
                os.chmod(scene.hidden, before & 0o7777)
                return "the mode of hidden data has changed"
    finally:
        over.set()
        for thread in threads:
            thread.join()
    raise PermissionError("it stays as it is")


def keep(swap, over):
    while not over.is_set():
        swap()


def relink(name, target):
    spare = Path(name + " new")
    spare.unlink(missing_ok=True)
    spare.symlink_to(target)
    spare.replace(name)
