"""By what this machine can end and limit an agent, for `a2rl doctor`: found by trying. Standard library only."""

import os
from typing import NamedTuple

from a2rl.isolation.cgroup import CONTROLLERS, Group
from a2rl.isolation.resources import GIB, Resources
from a2rl.sandbox import landlock


class Holds(NamedTuple):
    """In words that can be shown."""

    ends_by: str
    """How all that an agent started is ended."""
    limits: dict[str, str]
    """What limits memory, processes and cores."""
    lacks: tuple[str, ...]
    """What of these has no limit."""


def holds_here() -> Holds:
    """What an agent without bwrap, which has a table of processes of its own, is held by."""
    group = Group.make(f"a2rl-{os.urandom(6).hex()}")
    try:
        held = group.limit(Resources(memory=GIB, processes=100)) if group is not None else []
        ends_at_once = group is not None and group.ends_at_once
    finally:
        if group is not None:
            group.remove()
    limits = {each: "control group" for each in CONTROLLERS if each in held}
    if "pids" not in limits and os.geteuid() != 0:
        limits["pids"] = "RLIMIT_NPROC"
    return Holds(_way(ends_at_once), limits, tuple(each for each in CONTROLLERS if each not in limits))


def _way(ends_at_once: bool) -> str:
    if ends_at_once:
        return "control group"
    return "signal domain" if landlock.abi() >= landlock.SCOPES_ABI else "stopping and killing"
