"""Finds out how this machine can confine agents, by trying each method; results are not cached.

machine = examine(settings)
machine.isolation("landlock").layers      # the best that is possible here
machine.why_not["user"]                  # why a layer is not possible
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, cast

import a2rl
from a2rl.core.errors import InfrastructureError
from a2rl.linux import landlock, seccomp
from a2rl.linux.cgroup import CONTROLLERS, ControlGroup
from a2rl.linux.resources import GIB, Resources
from a2rl.sandbox.isolation import Isolation, Layer, SandboxKind
from a2rl.sandbox.namespaces import TRY_NAMESPACES, closed_parent, may_mount
from a2rl.sandbox.users import unused_user

TIMEOUT_S = 30
TEMPORARY_ERRORS = {
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.EINTR,
    errno.EIO,
    errno.ENOSPC,
    errno.EUSERS,
}
"""Errors of a machine that is short of resources now; all others are permanent."""
USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


class Machine(NamedTuple):
    """The methods of confinement that a machine supports."""

    landlock: int
    """The Landlock version; 0: none."""
    seccomp: bool
    bwrap: str
    """Path of the program bwrap; empty if it is not installed."""
    own: frozenset[Layer]
    """Which of "user", "devices" and "processes" an agent can have for itself."""
    why_not: dict[Layer, str]
    """Why an agent cannot have the others, by layer."""

    def isolation(self, kind: SandboxKind) -> Isolation:
        """Returns the best isolation of a kind; its layers were tried one by one, but not yet together."""
        if kind == "none":
            return Isolation(kind="none")
        layers: set[Layer] = {"seccomp", "broker"} if self.seccomp else set()
        if self.landlock >= landlock.NETWORK_ABI:
            layers.add("landlock")
        if self.landlock >= landlock.SCOPES_ABI:
            layers.add("scopes")
        if kind == "bwrap":
            layers |= {"file system", "devices", "processes"} if self.bwrap else set()
            return Isolation.of(kind, layers | (self.own & {"user"}))
        return Isolation.of(kind, layers | self.own)


def examine(must_reach: Iterable[Path] = ()) -> Machine:
    """Finds out what this machine supports.

    Args:
        must_reach: Paths that an agent with its own user must be able to access.

    Raises:
        InfrastructureError: The machine is short of resources (processes, memory), so that trying failed.
    """
    errors, own, why_not = _try_out(), set[Layer](), dict[Layer, str]()
    for layer, error in errors.items():
        if _is_temporary(error):
            raise InfrastructureError(
                f"cannot find out whether agents can have their own {layer} ({os.strerror(error)}): "
                "try again when it is less busy"
            )
        if error:
            why_not[layer] = os.strerror(error)
        else:
            own.add(layer)
    if os.geteuid() != 0:
        why_not["user"] = "only root can provide one"
    if "user" in own and not ("devices" in own and may_mount()) and (closed := _closed(must_reach)):
        own.discard("user")
        why_not["user"] = (
            f"{closed} is closed to other users, and mounts are refused to root here: `chmod o+x {closed}`"
        )
    if os.geteuid() == 0 and "user" not in own:
        own.discard("processes")  # its own /proc would belong to root and expose all kernel settings
        why_not.setdefault("processes", "it needs its own user where the pipeline runs as root")
    return Machine(landlock.abi(), seccomp.is_available(), shutil.which("bwrap") or "", frozenset(own), why_not)


def _try_out() -> dict[Layer, int]:
    root, user = str(Path(a2rl.__file__).parent.parent), unused_user() if os.geteuid() == 0 else 0
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", TRY_NAMESPACES, root, str(user)],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        return cast(dict[Layer, int], json.loads(done.stdout))
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise InfrastructureError(f"cannot find out what this machine supports: {said[-1]}; try again") from error
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InfrastructureError(f"cannot find out what this machine supports: {error}; try again") from error


def _is_temporary(error: int) -> bool:
    if error == errno.ENOSPC and USER_NAMESPACES.exists():
        return int(USER_NAMESPACES.read_text()) > 0  # 0: switched off, which gives the same error
    return error in TEMPORARY_ERRORS


def _closed(paths: Iterable[Path]) -> Path | None:
    user = unused_user()
    return next(filter(None, (closed_parent(path.resolve(), user) for path in paths if path.exists())), None)


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
