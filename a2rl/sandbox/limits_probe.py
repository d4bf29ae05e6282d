"""Tries which mechanisms can end and limit an agent on this machine, for `a2rl doctor`."""

import os
from typing import NamedTuple

from a2rl.linux import landlock
from a2rl.linux.cgroup import CONTROLLERS, ControlGroup
from a2rl.linux.resources import GIB, Resources


class LimitSupport(NamedTuple):
    """The available mechanisms, as text for the user."""

    ends_by: str
    """How all processes of an agent are ended."""
    limits: dict[str, str]
    """The mechanism that limits each of memory, processes and cores."""
    unlimited: tuple[str, ...]
    """Which of memory, processes and cores cannot be limited."""


def probe_limits() -> LimitSupport:
    """Finds the mechanisms for an agent without bwrap, whose process table would end all its processes."""
    group = ControlGroup.make(f"a2rl-{os.urandom(6).hex()}")
    try:
        held = group.limit(Resources(memory=GIB, processes=100)) if group is not None else []
        ends_at_once = group is not None and group.ends_at_once
    finally:
        if group is not None:
            group.remove()
    limits = {each: "control group" for each in CONTROLLERS if each in held}
    if "pids" not in limits and os.geteuid() != 0:
        limits["pids"] = "RLIMIT_NPROC"
    return LimitSupport(_end_mechanism(ends_at_once), limits, tuple(each for each in CONTROLLERS if each not in limits))


def _end_mechanism(ends_at_once: bool) -> str:
    if ends_at_once:
        return "control group"
    if landlock.abi() >= landlock.SCOPES_ABI:
        return "signal scope"
    return "stopping and killing"
