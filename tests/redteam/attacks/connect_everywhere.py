"""Connects to every server of this machine: Prefect, MLflow, databases, the services of other runs.

An agent can reach only the grading port and its own servers, whatever address it uses and however it is written.
"""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

LEVEL = "run"


def attack(scene):
    own, reached, tried = urlsplit(os.environ["GRADING_SERVER_URL"]).port, [], 0
    for port in sorted(listening() - {own} | {22, 80, 443, 4200, 5000, 5432, 6379, 11434}):
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"),
                             (socket.AF_INET6, "::ffff:127.0.0.1"), (socket.AF_INET, "0.0.0.0")):  # fmt: skip
            tried += 1
            with socket.socket(family) as client:
                client.settimeout(2)
                if client.connect_ex((host, port)) == 0:
                    reached.append(f"{host}:{port}")
    if reached:
        return reached
    raise PermissionError(f"{tried} connections were refused")


def listening():
    """Returns the ports of this machine's TCP servers that the agent can see."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found
