"""What this machine gives to confine an agent with, found by trying it out; nothing is remembered.

machine = examine(settings)
machine.strength("landlock").layers      # the best that is possible here
machine.why_not["user"]                  # and why some layer is not
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
from a2rl.errors import InfrastructureError
from a2rl.isolation import probe
from a2rl.isolation.namespaces import closed_folder, may_mount
from a2rl.isolation.strength import Layer, Sandbox, Strength
from a2rl.isolation.users import unused_user
from a2rl.sandbox import landlock, seccomp

TIMEOUT_S = 30
PASSING = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EIO, errno.ENOSPC, errno.EUSERS}
"""Errors of a machine that is short of something now; all others are its nature."""
USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


class Machine(NamedTuple):
    """What there is, besides what every Linux has."""

    landlock: int
    """The version of Landlock; 0: none."""
    seccomp: bool
    bwrap: str
    """The program; empty: it is not installed."""
    own: frozenset[Layer]
    """Of "user", "devices" and "processes", those that an agent can have."""
    why_not: dict[Layer, str]
    """Of each other one, why it cannot."""

    def strength(self, kind: Sandbox) -> Strength:
        """The best of a kind, without having been tried as a whole."""
        if kind == "none":
            return Strength(kind="none")
        layers: set[Layer] = {"seccomp", "broker"} if self.seccomp else set()
        if self.landlock >= landlock.NETWORK_ABI:
            layers.add("landlock")
        if self.landlock >= landlock.SCOPES_ABI:
            layers.add("scopes")
        if kind == "bwrap":
            layers |= {"file system", "devices", "processes"} if self.bwrap else set()
            return Strength.of(kind, layers | (self.own & {"user"}))
        return Strength.of(kind, layers | self.own)


def examine(must_reach: Iterable[Path] = ()) -> Machine:
    """Looks at what there is.

    Args:
        must_reach: what an agent with a user of its own could not do without.

    Raises:
        InfrastructureError: the machine is short of something now (processes, memory), so that nobody can tell.
    """
    errors, own, why_not = _try_out(), set[Layer](), dict[Layer, str]()
    for layer, error in errors.items():
        if _is_passing(error):
            raise InfrastructureError(
                f"this machine cannot say now whether agents can have {layer} of their own ({os.strerror(error)}): "
                "try again when it is less busy"
            )
        if error:
            why_not[layer] = os.strerror(error)
        else:
            own.add(layer)
    if os.geteuid() != 0:
        why_not["user"] = "only root can give one"
    if "user" in own and not ("devices" in own and may_mount()) and (closed := _closed(must_reach)):
        own.discard("user")
        why_not["user"] = (
            f"{closed} is closed to other users, and mounts are refused to root here: `chmod o+x {closed}`"
        )
    if os.geteuid() == 0 and "user" not in own:
        own.discard("processes")  # a /proc of its own would be root's, with all switches of the kernel
        why_not.setdefault("processes", "it takes a user of its own where the pipeline is root's")
    return Machine(landlock.abi(), seccomp.is_available(), shutil.which("bwrap") or "", frozenset(own), why_not)


def _try_out() -> dict[Layer, int]:
    root, user = str(Path(a2rl.__file__).parent.parent), unused_user() if os.geteuid() == 0 else 0
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", probe.START, root, str(user)],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        return cast(dict[Layer, int], json.loads(done.stdout))
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise InfrastructureError(f"what this machine gives cannot be tried out: {said[-1]}; try again") from error
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InfrastructureError(f"what this machine gives cannot be tried out: {error}; try again") from error


def _is_passing(error: int) -> bool:
    if error == errno.ENOSPC and USER_NAMESPACES.exists():
        return int(USER_NAMESPACES.read_text()) > 0  # 0: switched off, which gives the same error
    return error in PASSING


def _closed(paths: Iterable[Path]) -> Path | None:
    user = unused_user()
    return next(filter(None, (closed_folder(path.resolve(), user) for path in paths if path.exists())), None)
