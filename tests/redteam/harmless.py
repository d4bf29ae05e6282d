"""Protects this machine from attacks that run as root without a sandbox.

They get a process table of their own, and see the machine's files read-only, except below /tmp, where their targets
are. An attack that guesses names or process ids can then reach nothing that the machine needs.
"""

import shlex
from collections.abc import Iterable

TARGETS = "/tmp"


def contained(command: Iterable[str]) -> list[str]:
    """Returns the command line that runs a command so; it needs `unshare` and `mount` of util-linux, and root."""
    lines = ["set -e", f"mount --bind {TARGETS} {TARGETS}", "mount -o remount,bind,ro /", f"exec {shlex.join(command)}"]
    namespaces = ["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--propagation", "private"]
    return ["unshare", *namespaces, "sh", "-c", "\n".join(lines)]
