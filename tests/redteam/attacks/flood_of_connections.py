"""Opens 1,500 connections to the grading service and keeps them open, so that it runs out of file descriptors.

The service closes silent connections and those beyond its limit. A valid submission in the same run is graded, and the
run ends in time.
"""

import contextlib
import os
import resource
import socket
from urllib.parse import urlsplit

LEVEL = "run"
SPEC = {"budget": "2m"}  # it ends long before


def attack(scene):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    url = urlsplit(os.environ["GRADING_SERVER_URL"])
    kept = []
    for _ in range(1500):
        with contextlib.suppress(OSError):
            kept.append(socket.create_connection((url.hostname, url.port), timeout=2))
    error = scene.submit_until_graded(20)
    if error:
        return f"with {len(kept)} connections open no submission is graded: {error}"
    raise PermissionError(f"{len(kept)} connections were opened, and an honest submission was graded")


def held(after):
    from tests.redteam.look import not_graded

    return not_graded(after)
