"""Leaves so many and such odd files where the pipeline reads that the deadline is missed.

Another process reads the files, for as long as it takes; the agent is ended on time.
"""

import os
import threading
import time
from pathlib import Path

LEVEL = "run"
SPEC = {"budget": "12s"}


def attack(scene):
    for work in (many_links, many_files, deep_folders, odd_things, one_that_grows, renames):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(600)


def many_links():
    for folder in range(1000):
        here = Path("code", f"links{folder}")
        here.mkdir(exist_ok=True)
        for number in range(500):
            os.symlink("/dev/zero", here / str(number))  # noqa: PTH211


def many_files():
    for number in range(100_000):
        Path("output", f"file-{number:06}").touch()


def deep_folders():
    here = os.open("code", os.O_RDONLY)
    for _ in range(400):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below


def odd_things():
    for number, name in enumerate((b"\xff\xfe", b"a\nb", b"\x1b[31m", b"-rf", b"'; $(true)", b"x" * 255)):
        Path(os.fsdecode(b"code/" + name)).write_bytes(b"\0" * 100_000 * number)
    os.mkfifo("code/pipe")
    os.symlink("..", "code/loop")  # noqa: PTH211
    with Path("code/sparse").open("wb") as file:
        file.truncate(1 << 40)


def one_that_grows():
    with Path("code/grows.py").open("wb") as file:
        while file.tell() < 200 << 20:
            file.write(b"#" * (1 << 20))
            file.flush()


def renames():
    Path("code/left").mkdir()
    while True:
        os.rename("code/left", "code/right")  # noqa: PTH104
        os.rename("code/right", "code/left")  # noqa: PTH104


def held(after):
    from a2rl.run.records import ExecuteRecord

    late_s = after.run.need("execute", ExecuteRecord).elapsed_s - after.run.spec.budget_s
    return f"it was ended {late_s:.0f} s late" if late_s > 6 else ""
