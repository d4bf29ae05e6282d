"""Floods the broker: invalid requests, thousands of connections, callers that die while they wait.

Every call gets an answer, an allowed connection still works afterwards, and the log of connections stays short.
"""

# The attack makes the system calls as directly as Python can.
# ruff: noqa: PTH101

import ctypes
import os
import random
import resource
import signal
import socket
import threading
import time
from pathlib import Path

LEVEL = "sandbox"
LIBC = ctypes.CDLL(None, use_errno=True)
SECONDS, THREADS, WAITING, VICTIMS = 1.5, 8, 60, 20
MAX_LOG = 1 << 20
NOWHERE = b"\xff"
"""Begins each random name, because without a sandbox a random name may be that of the machine's root folder."""
NO_PROCESS = 1 << 30
"""Added to each random process id: Linux numbers no process as high."""


def attack(scene):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with socket.socket(socket.AF_UNIX) as full:
        Path("full").unlink(missing_ok=True)
        full.bind("full")
        full.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(WAITING)]
        for client in clients:
            threading.Thread(target=ignore, args=(client.connect, "full"), daemon=True).start()
        deadline = time.monotonic() + SECONDS
        flood = [threading.Thread(target=ask, args=(scene, deadline)) for _ in range(THREADS)]
        for thread in flood:
            thread.start()
        for _ in range(VICTIMS):
            die_while_waiting()
        for thread in flood:
            thread.join(20)
            if thread.is_alive():
                return "a call without an answer"
        started = time.monotonic()
        socket.create_connection(("127.0.0.1", scene.grading_port), 5).close()
        os.chmod("full", 0o600)
        if time.monotonic() - started > 5:
            return "an honest connection waits"
    raise PermissionError("everything was answered")


def held(after):
    log = after.run.logs / "network.jsonl"
    size = log.stat().st_size if log.exists() else 0
    if size > MAX_LOG:
        return f"a log of {size >> 10} KiB"
    return "" if after.stopped_by.startswith("PermissionError: everything") else after.got or after.stopped_by


def ask(scene, deadline):
    ends = [("127.0.0.1", scene.other_port), (scene.foreign, 1), ("127.0.0.1", random.randrange(1, 1 << 16))]
    while time.monotonic() < deadline:
        with socket.socket() as client:
            client.setblocking(False)
            ignore(client.connect, random.choice(ends))
            noise = os.urandom(random.randrange(140))
            for length in (len(noise), 0, -1, 1 << 30):
                LIBC.connect(client.fileno(), noise, length)
            LIBC.connect(-1, noise, len(noise))
            LIBC.connect(client.fileno(), ctypes.c_void_p(random.getrandbits(64)), 16)
            LIBC.listen(random.randrange(4096), random.getrandbits(31))
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            ignore(client.connect, random.choice(("\x1b[31m\u202e" + "x" * 60, "\0" + "y" * 99)))
        LIBC.chmod(ctypes.c_void_p(random.getrandbits(64)), 0)
        LIBC.chmod(NOWHERE + os.urandom(5000), 0)
        LIBC.utimensat(random.randrange(64), b"\xff" * random.randrange(300), ctypes.c_void_p(8), 0)
        LIBC.setxattr(b".", b"user.x", b"x", ctypes.c_size_t(random.getrandbits(63)), 0)
        LIBC.inotify_add_watch(random.randrange(64), b".", random.getrandbits(31))
        LIBC.sched_setaffinity(NO_PROCESS | random.getrandbits(22), ctypes.c_size_t(1 << 40), ctypes.c_void_p(16))
        LIBC.setpriority(0, NO_PROCESS | random.getrandbits(22), 5)


def die_while_waiting():
    child = os.fork()
    if child == 0:
        with socket.socket(socket.AF_UNIX) as client:
            ignore(client.connect, "full")
        os._exit(0)
    time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def ignore(call, argument):
    try:
        call(argument)
    except (OSError, ValueError):
        return
