"""Selects the sandbox of an agent at each start, never a weaker one than was requested.

    isolation = select_sandbox("landlock", settings)                # before a run begins; runs a test process
    isolation = reselect_sandbox("landlock", recorded, settings)    # at each start of the run's agent
    examine_machine(settings).why_not["user"]                       # why a layer is not possible

What a machine supports is found by trying each method; results are not cached. The launcher (launch.py) applies the
selected sandbox; if it cannot, nothing is started.
"""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import a2rl
from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError, last_words
from a2rl.core.settings import Settings
from a2rl.linux import landlock, seccomp
from a2rl.linux.cgroup import CONTROLLERS, ControlGroup
from a2rl.linux.resources import GIB, Resources
from a2rl.sandbox.broker.caller import duplicate
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.isolation import LAYERS, NONE, Isolation, Layer, SandboxKind
from a2rl.sandbox.namespaces import TRY_NAMESPACES, closed_parent, lacking_for_another_user, may_mount
from a2rl.sandbox.policy import python_folders, workspace_confinement
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.users import give_to_user, unused_user

EXAMINE_TIMEOUT_S = 30
TEMPORARY_ERRORS = {
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EIO, errno.ENOSPC, errno.EUSERS,
}  # fmt: skip
"""Errors of a machine that is short of resources now; all others are permanent."""
USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
TRIAL_TIMEOUT_S = 30.0
MAX_OUTPUT = 4096
PROBE = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10).close()"
MAX_SHOWN = 200
ALTERNATIVE = "or use --sandbox none with agents that you trust"


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
    """Why an agent cannot have the others, or the broker, by layer."""

    def isolation(self, kind: SandboxKind) -> Isolation:
        """Returns the best isolation of a kind; its layers were tried one by one, but not yet together."""
        if kind == "none":
            return Isolation(kind="none")
        layers: set[Layer] = {"seccomp", "broker"} if self.seccomp else set()
        layers -= self.why_not.keys()
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
    if problem := _problem_of_the_broker():
        why_not["broker"] = problem
    if os.geteuid() != 0:
        why_not["user"] = "only root can provide one"
    elif lacking := lacking_for_another_user():
        own.discard("user")
        why_not["user"] = (
            f"root lacks {', '.join(lacking)} here: in a container, --cap-add {' --cap-add '.join(lacking)}"
        )
    if "user" in own and not ("devices" in own and may_mount()) and (closed := _closed(must_reach)):
        own.discard("user")
        why_not["user"] = (
            f"{closed} is closed to other users, and mounts are refused to root here: `chmod o+x {closed}`"
        )
    if os.geteuid() == 0 and "user" not in own:
        own.discard("processes")  # its own /proc would belong to root and expose all kernel settings
        why_not.setdefault("processes", "it needs its own user where the pipeline runs as root")
    return Machine(landlock.abi(), seccomp.is_available(), shutil.which("bwrap") or "", frozenset(own), why_not)


def _problem_of_the_broker() -> str:
    """Tries on this process itself the call that the profiles of container engines refuse."""
    try:
        with open(os.devnull) as file:  # noqa: PTH123 - any open file
            os.close(duplicate(os.getpid(), file.fileno()))
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return "the kernel does not know pidfd_getfd: the broker needs Linux 5.9"
        return (
            "this container's seccomp filter refuses pidfd_getfd: start it with --cap-add SYS_PTRACE, or with a "
            "profile that allows the call"
        )
    return ""


def _try_out() -> dict[Layer, int]:
    root, user = str(Path(a2rl.__file__).parent.parent), unused_user() if os.geteuid() == 0 else 0
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", TRY_NAMESPACES, root, str(user)],
            capture_output=True, text=True, timeout=EXAMINE_TIMEOUT_S, check=True,
        )  # fmt: skip
        return cast(dict[Layer, int], json.loads(done.stdout))
    except subprocess.CalledProcessError as error:
        said = last_words(error.stderr, f"exit code {error.returncode}")
        raise InfrastructureError(f"cannot find out what this machine supports: {said}; try again") from error
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
    if "pids" not in limits:
        limits["pids"] = "RLIMIT_NPROC" if os.geteuid() != 0 else "counting"
    return LimitSupport(_end_mechanism(ends_at_once), limits, tuple(each for each in CONTROLLERS if each not in limits))


def _end_mechanism(ends_at_once: bool) -> str:
    if ends_at_once:
        return "control group"
    if landlock.abi() >= landlock.SCOPES_ABI:
        return "signal scope"
    return "stopping and killing"


class TrialEnd(NamedTuple):
    """How a program ended."""

    exit_code: int | None
    """None if it could not be run, or did not end in time."""
    output: str
    """What it printed, or why it failed."""

    @property
    def ok(self) -> bool:
        """Whether it ended in time and without an error."""
        return self.exit_code == 0


def try_in_sandbox(
    command: Sequence[str],
    isolation: Isolation,
    settings: Settings,
    env: Mapping[str, str] | None = None,
    read: tuple[Path, ...] = (),
    connect: tuple[int, ...] = (),
    gpus: tuple[str, ...] = (),
    timeout_s: float = TRIAL_TIMEOUT_S,
) -> TrialEnd:
    """Runs a program as an agent would run it, in an empty workspace that is also its HOME.

    Args:
        env: Environment variables, besides HOME and TMPDIR.
        read: What it may read in addition to the system and Python.
        timeout_s: How long it may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        workspace, log = Path(folder, "workspace"), Path(folder, "log")
        workspace.mkdir()
        user = unused_user() if "user" in isolation.layers else 0
        if user:
            Path(folder).chmod(0o711)
            give_to_user(workspace, user)
        network_log = Path(folder, "network")
        confinement = workspace_confinement(workspace, isolation, settings, read, connect, network_log, user, gpus)
        own = {"PATH": os.defpath, **(env or {}), "HOME": str(workspace), "TMPDIR": str(workspace)}
        try:
            with AgentProcess(
                AgentCommand(list(command), str(workspace), own, str(log), confinement), settings
            ) as process:
                ended = process.wait(timeout_s)
        except InfrastructureError as error:
            return TrialEnd(None, str(error))
        if ended is None:
            return TrialEnd(None, f"it did not end within {timeout_s:.0f} s")
        said = log.read_text(encoding="utf-8", errors="replace").strip()[-MAX_OUTPUT:] if log.exists() else ""
        return TrialEnd(ended.exit_code, said or ended.error or f"exit code {ended.exit_code}")


def select_sandbox(kind: SandboxKind, settings: Settings) -> Isolation:
    """Returns the best sandbox of a kind that works here, after a test process has run in it.

    Raises:
        UsageError: This machine does not support all layers that a sandbox of this kind requires.
        InfrastructureError: The test process failed.
    """
    isolation = _best_supported(kind, settings)
    if isolation.confines and (why := _problem(isolation, settings)):
        raise InfrastructureError(
            f"the sandbox {kind} does not work here: {why}; `a2rl doctor` says more, {ALTERNATIVE}"
        )
    return isolation


def reselect_sandbox(kind: SandboxKind, recorded: Isolation, settings: Settings) -> Isolation:
    """Selects the sandbox for the start of a run's agent, without a test process: the start itself is the test.

    Args:
        kind: The kind that the run's spec asks for.
        recorded: The isolation when the run began; it can require more, never less.

    Raises:
        UsageError: This machine does not support the required layers, or those that the run began with.
        IntegrityError: The run began with a sandbox, and its spec now asks for none.
    """
    if kind == "none" and recorded.confines:
        raise IntegrityError("spec.json asks for no sandbox, but the run began with one: restore spec.json from a copy")
    isolation = _best_supported(kind, settings)
    if gone := [layer for layer in recorded.layers if layer not in isolation.layers]:
        raise UsageError(
            f"this run began with a stronger sandbox than this machine supports now; missing: "
            f"{', '.join(LAYERS[layer] for layer in gone)}. Resume it where it began, or start a new run"
        )
    return isolation


def _best_supported(kind: SandboxKind, settings: Settings) -> Isolation:
    if kind == "none":
        return NONE
    machine = examine_machine(settings)
    isolation = machine.isolation(kind)
    if isolation.missing_layers:
        raise UsageError(
            f"no sandbox {kind} on this machine; missing: {'; '.join(isolation.missing_layers)}. "
            f"{_remedy(kind, machine)}"
        )
    return isolation


def examine_machine(settings: Settings) -> Machine:
    """Finds out how this machine can confine the agents of this checkout.

    Raises:
        InfrastructureError: The machine is short of resources, so that trying failed.
    """
    return examine((*python_folders(settings), settings.root))


def _remedy(kind: SandboxKind, machine: Machine) -> str:
    """Returns what the user can do about missing layers."""
    if kind == "bwrap" and not machine.bwrap:
        return f"Install it (`apt-get install bubblewrap`), use --sandbox landlock, {ALTERNATIVE}"
    if not machine.seccomp:
        return f"Use x86_64 or aarch64 with a kernel, or a container, that has seccomp, {ALTERNATIVE}"
    if "broker" in machine.why_not:
        return f"{machine.why_not['broker']}, {ALTERNATIVE}"
    if machine.landlock < landlock.NETWORK_ABI:
        has = f"version {machine.landlock}" if machine.landlock else "none"
        return f"Landlock here: {has}; it needs Linux 6.7 with Landlock switched on. Use --sandbox bwrap, {ALTERNATIVE}"
    user = f"its own user, which root can provide ({machine.why_not.get('user', '')})"
    needs = f"It needs Linux 6.12, process namespaces, or {user}"
    if _apparmor_forbids_namespaces():
        return (
            f"{needs}. Here, `sysctl kernel.apparmor_restrict_unprivileged_userns=0` allows namespaces, {ALTERNATIVE}"
        )
    return f"{needs}. Use --sandbox bwrap, {ALTERNATIVE}"


def _apparmor_forbids_namespaces() -> bool:
    """Whether this is a system, such as Ubuntu 24.04, where bwrap cannot make namespaces for an ordinary user."""
    switch = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    return os.geteuid() != 0 and switch.exists() and switch.read_text().strip() == "1"


def _problem(isolation: Isolation, settings: Settings) -> str:
    """Runs a test process; returns why it failed, or an empty text."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended = try_in_sandbox(
            [sys.executable, "-I", "-S", "-c", PROBE, str(port)], isolation, settings, connect=(port,)
        )
    return "" if ended.ok else last_words(ended.output)[:MAX_SHOWN]
