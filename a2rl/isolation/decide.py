"""Which sandbox an agent gets: decided by the pipeline at each start, and never a weaker one than was asked for.

    strength = decide("landlock", settings)                     # before a run begins: everything tried out
    strength = decide_again("landlock", recorded, settings)     # at each start of its agent

What is decided is what the launcher puts in force; where it cannot, nothing is started (launch.py).
"""

import os
import socket
import sys
import tempfile
from pathlib import Path

from a2rl.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.isolation.machine import Machine, examine
from a2rl.isolation.reach import confinement_in, python_folders
from a2rl.isolation.strength import LAYERS, NONE, Sandbox, Strength
from a2rl.isolation.users import give, unused_user
from a2rl.process import AgentProcess
from a2rl.sandbox import landlock
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand

PROBE = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10).close()"
PROBE_TIMEOUT_S = 30.0
OTHERWISE = "or use --sandbox none, for agents that you trust"


def decide(kind: Sandbox, settings: Settings) -> Strength:
    """The best sandbox of a kind that works here, after a process was confined in it and did its work.

    Raises:
        UsageError: this machine cannot give one as strong as a sandbox of this kind must be.
        InfrastructureError: it did not work just now.
    """
    strength = _possible(kind, settings)
    if strength.confines and (why := _problem(strength, settings)):
        raise InfrastructureError(f"the sandbox {kind} does not work here: {why}; `a2rl doctor` says more, {OTHERWISE}")
    return strength


def decide_again(kind: Sandbox, recorded: Strength, settings: Settings) -> Strength:
    """The same for the start of a run's agent, which itself is the trial.

    Args:
        kind: what was asked for.
        recorded: what the run had when it began; can ask for more, never for less.
        settings: of this checkout.

    Raises:
        UsageError: as above; or what the run had when it began is not possible here.
        IntegrityError: it had a sandbox, and now none is asked for.
    """
    if kind == "none" and recorded.confines:
        raise IntegrityError("spec.json asks for no sandbox, but the run began with one: restore spec.json from a copy")
    strength = _possible(kind, settings)
    if gone := [layer for layer in recorded.layers if layer not in strength.layers]:
        raise UsageError(
            f"this run began with a stronger sandbox than this machine can give now; missing: "
            f"{', '.join(LAYERS[layer] for layer in gone)}. Resume it where it began, or start a new run"
        )
    return strength


def _possible(kind: Sandbox, settings: Settings) -> Strength:
    if kind == "none":
        return NONE
    machine = machine_here(settings)
    strength = machine.strength(kind)
    if strength.lacks:
        raise UsageError(
            f"no sandbox {kind} on this machine; missing: {'; '.join(strength.lacks)}. {_mend(kind, machine)}"
        )
    return strength


def machine_here(settings: Settings) -> Machine:
    """What there is to confine the agents of this checkout with.

    Raises:
        InfrastructureError: nobody can tell now.
    """
    return examine((*python_folders(settings), settings.root))


def _mend(kind: Sandbox, machine: Machine) -> str:
    """What to do about a sandbox that is not strong enough."""
    if kind == "bwrap" and not machine.bwrap:
        return f"Install it (`apt-get install bubblewrap`), use --sandbox landlock, {OTHERWISE}"
    if not machine.seccomp:
        return f"Use x86_64 or aarch64 with a kernel, or a container, that has seccomp, {OTHERWISE}"
    if machine.landlock < landlock.NETWORK_ABI:
        has = f"version {machine.landlock}" if machine.landlock else "none"
        return f"Landlock here: {has}; it takes Linux 6.7 with Landlock switched on. Use --sandbox bwrap, {OTHERWISE}"
    return (
        "It takes Linux 6.12, or namespaces for processes, or a user of its own, which root can give "
        f"({machine.why_not.get('user', '')}). Use --sandbox bwrap, {OTHERWISE}"
    )


def _problem(strength: Strength, settings: Settings) -> str:
    """Why it does not work here; nothing if it does."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        workspace, log = Path(folder, "workspace"), Path(folder, "log")
        workspace.mkdir()
        user = unused_user() if "user" in strength.layers else 0
        if user:
            Path(folder).chmod(0o711)
            give(workspace, user)
        port = server.getsockname()[1]
        confinement = confinement_in(workspace, strength, settings, (), (port,), Path(folder, "network"), user)
        command = [sys.executable, "-I", "-S", "-c", PROBE, str(port)]
        try:
            with AgentProcess(
                AgentCommand(command, str(workspace), {"PATH": os.defpath}, str(log), confinement), settings
            ) as process:
                ended = process.wait(PROBE_TIMEOUT_S)
        except InfrastructureError as error:
            return str(error)
        if ended is None:
            return "it does not answer"
        if ended.exit_code == 0:
            return ""
        said = log.read_text(encoding="utf-8", errors="replace").strip()[-200:] if log.exists() else ""
        return said or ended.error or f"exit code {ended.exit_code}"
