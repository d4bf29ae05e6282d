"""Selects the sandbox of an agent at each start, never a weaker one than was requested.

    isolation = select_sandbox("landlock", settings)                # before a run begins; runs a test process
    isolation = reselect_sandbox("landlock", recorded, settings)    # at each start of the run's agent

The launcher (launch.py) applies the selected sandbox; if it cannot, nothing is started.
"""

import socket
import sys

from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.core.settings import Settings
from a2rl.linux import landlock
from a2rl.sandbox.isolation import LAYERS, NONE, Isolation, SandboxKind
from a2rl.sandbox.policy import python_folders
from a2rl.sandbox.support import Machine, examine
from a2rl.sandbox.trial import try_in_sandbox

PROBE = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10).close()"
MAX_SHOWN = 200
ALTERNATIVE = "or use --sandbox none with agents that you trust"


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
        settings: The settings of this checkout.

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
    if machine.landlock < landlock.NETWORK_ABI:
        has = f"version {machine.landlock}" if machine.landlock else "none"
        return f"Landlock here: {has}; it needs Linux 6.7 with Landlock switched on. Use --sandbox bwrap, {ALTERNATIVE}"
    return (
        "It needs Linux 6.12, process namespaces, or its own user, which root can provide "
        f"({machine.why_not.get('user', '')}). Use --sandbox bwrap, {ALTERNATIVE}"
    )


def _problem(isolation: Isolation, settings: Settings) -> str:
    """Runs a test process; returns why it failed, or an empty text."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended = try_in_sandbox(
            [sys.executable, "-I", "-S", "-c", PROBE, str(port)], isolation, settings, connect=(port,)
        )
    return "" if ended.ok else ended.output[-MAX_SHOWN:]
