"""Sends invalid HTTP, invalid JSON and invalid paths, to make the service fail or hang.

Every answer is a 4xx or a closed connection, never a 5xx, and the service continues.
"""

import contextlib
import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

LEVEL = "run"
SPEC = {"budget": "40s"}
HEAD = b"POST /submit HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
REQUESTS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n",
    b"\r\n" * 100_000, GET + b"X: " + b"x" * 1_000_000, b"GET /" + b"%ff%00" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n", HEAD + b"Content-Length: 10\r\nContent-Length: 20\r\n\r\n{}",
    HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", CHUNKED + b"ffffffffffffffff\r\n",
    CHUNKED + b"1\r\n[\r\n" * 70_000, HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    (GET + b"\r\n") * 100, GET + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n",
)  # fmt: skip
PATHS = (
    "a/" * 2000, "é" * 255, "x" * 256, "\n\r\x1b[2J", "/proc/self/fd/0", "/dev/zero", "/dev/stdin", ".", "..",
    "output/", "output//./", "output/loop", "output/loop/loop", "output/pipe", "output/socket", "output/file",
    "output/file/x", "output/locked", "output/names", "output/deep" + "/d" * 150, "~", "%00", "\ufffe\uffff",
)  # fmt: skip
BODIES = (
    b"", b"{", b"null", b"[" * 60_000, b'{"model_path": "\\ud800"}', b'{"model_path": "' + b"\\u0000" * 1000 + b'"}',
    b'{"model_path": 1e999}', b'{"model_path": NaN}', b"\xff\xfe\xfd", b'{"model_path": {"a": 1}}', b"9" * 60_000,
    *(json.dumps({"model_path": path}).encode() for path in PATHS),
)  # fmt: skip


def attack(scene):
    lay_traps()
    faults = [f"{data[:60]!r}: {said}" for data in REQUESTS if (said := raw(data)).startswith("5")]
    faults += [
        f"{body[:60]!r}: {status}"
        for body in BODIES
        if (status := scene.request("/submit", body)[0]) >= 500 or status == 0
    ]
    if faults:
        return f"answered with a server error: {faults}"
    status, _ = scene.submit(scene.copy_model("output/honest"))
    if status != 200:
        return f"an honest submission is answered {status}"
    raise PermissionError(f"{len(REQUESTS) + len(BODIES)} requests were refused, and an honest one was taken")


def lay_traps():
    output = Path("output")
    (output / "loop").symlink_to("loop")
    os.mkfifo(output / "pipe")
    (output / "file").write_text("x")
    (output / "deep" / "/".join(["d"] * 150)).mkdir(parents=True)
    names = output / "names"
    names.mkdir()
    for name in (b"\xff.safetensors", b"\x1b[31m.safetensors", b"x" * 240 + b".safetensors", b"config.json"):
        Path(os.fsdecode(os.fsencode(names) + b"/" + name)).write_text("{}")
    locked = output / "locked"
    locked.mkdir()
    locked.chmod(0)
    with contextlib.suppress(OSError):
        socket.socket(socket.AF_UNIX).bind("output/socket")


def raw(data):
    url = urlsplit(os.environ["GRADING_SERVER_URL"])
    try:
        with socket.create_connection((url.hostname, url.port), timeout=3) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
            return connection.recv(100).partition(b" ")[2][:3].decode("latin-1")
    except OSError:
        return ""


def held(after):
    from a2rl.run.events import Graded

    return "" if after.run.ledger.events(Graded) and after.got is None else after.got or after.stopped_by
