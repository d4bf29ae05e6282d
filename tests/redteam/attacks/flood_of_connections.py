"""Opens 1,500 connections to the grading service and keeps them, so that it runs out of files or of patience.

The service closes what is too much and what says nothing; an honest submission in the same run is graded, and the run
ends in time.
"""

import contextlib
import json
import os
import resource
import shutil
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

LEVEL = "run"
SPEC = {"budget": "30s"}


def attack(scene):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    url = urlsplit(os.environ["GRADING_SERVER_URL"])
    kept = []
    for _ in range(1500):
        with contextlib.suppress(OSError):
            kept.append(socket.create_connection((url.hostname, url.port), timeout=2))
    folder = Path("output", "honest")
    shutil.copytree(os.environ["MODEL_PATH"], folder, copy_function=shutil.copyfile)
    until, last = time.monotonic() + 20, "no answer"
    while time.monotonic() < until:
        try:
            if submit(folder) == 200:
                raise PermissionError(f"{len(kept)} connections were opened, and an honest submission was graded")
        except OSError as error:
            last = str(error)
            if isinstance(error, PermissionError):
                raise
            time.sleep(0.5)
    return f"with {len(kept)} connections open nobody can submit: {last}"


def submit(folder):
    request = urllib.request.Request(
        f"{os.environ['GRADING_SERVER_URL']}/submit", json.dumps({"model_path": str(folder)}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    return urllib.request.urlopen(request, timeout=20).status


def held(after):
    from a2rl.events import Graded

    return "" if after.run.ledger.events(Graded) else after.got or after.stopped_by
