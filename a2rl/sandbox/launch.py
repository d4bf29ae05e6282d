"""Starts an agent in its confinement: `Launch` in the supervisor, and `main` in the process that becomes the agent.

Contract: the agent's command runs only if its whole confinement is in force; else, `Launch` raises NotConfinedError.
The confinement applies to that process and all its descendants; the supervisor stays outside, so that it can end them.

    python -I -S -c START <folder of a2rl> <file descriptor> <confinement> <command> ...

This is a separate program and not code between fork and exec, because with bwrap the process that confines itself is
already inside bwrap's namespaces. It costs one start of Python. Standard library only, because it starts without the
installed packages.
"""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import a2rl
from a2rl.linux import landlock
from a2rl.sandbox.bwrap import bwrap_command
from a2rl.sandbox.confinement import Confinement
from a2rl.sandbox.namespaces import (
    TERMINATION_SIGNALS,
    drop_capabilities,
    drop_inheritable_capabilities,
    enter_namespaces,
    run_as_init,
    switch_user,
)
from a2rl.sandbox.syscall_filter import install_agent_filter

START = "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); from a2rl.sandbox.launch import main"
START += "; sys.path.remove(root); main(*sys.argv[1:])"
MAX_MESSAGE = 1 << 12
_CONFINED, _NOT_CONFINED, _NOT_STARTED = b"+", b"-", b"!"


class NotConfinedError(Exception):
    """The confinement could not be applied, so nothing was started."""


class Launch:
    """Starts one agent; run `command`, let it inherit the socket `theirs`, then call `wait`."""

    def __init__(self, command: Sequence[str], confinement: Confinement, cwd: str, env: Mapping[str, str]) -> None:
        self._name = command[0]
        self._ours, self.theirs = socket.socketpair()
        root = str(Path(a2rl.__file__).parent.parent)
        own = [sys.executable, "-I", "-S", "-c", START, root, str(self.theirs.fileno()), json.dumps(confinement)]
        prefix = bwrap_command(confinement, cwd, env) if confinement.bwrap else []
        self.command = [*prefix, *own, *command]

    def wait(self) -> int | None:
        """Waits for the confinement; call it once `command` has started and inherited `theirs`.

        Returns:
            The file descriptor from which the broker answers calls.

        Raises:
            NotConfinedError: The confinement failed; the message is empty if the process died without a reason.
            OSError: The agent's program could not be started.
        """
        self.theirs.close()
        with self._ours:
            message, files, _, _ = socket.recv_fds(self._ours, MAX_MESSAGE, 1)
            if message[:1] != _CONFINED:
                raise NotConfinedError(message[1:].decode())
            if failed := self._ours.recv(MAX_MESSAGE):
                raise OSError(*json.loads(failed[1:]))
        return files[0] if files else None


def main(channel: str, confinement: str, *command: str) -> None:
    """Confines this process, then becomes the command."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wanted = Confinement.of(json.loads(confinement))
    with socket.socket(fileno=int(channel)) as supervisor:
        supervisor.set_inheritable(False)
        try:
            telling = enter_namespaces(wanted)
            listener = confine(wanted)
        except OSError as error:
            supervisor.send(_NOT_CONFINED + str(error.strerror or error).encode())
            return
        socket.send_fds(supervisor, [_CONFINED], [listener])
        os.close(listener)  # a process with this descriptor could answer calls instead of the broker
        if telling is not None and (agent := os.fork()):
            supervisor.close()
            run_as_init(agent, telling)
        _start(command, supervisor)


def _start(command: tuple[str, ...], supervisor: socket.socket) -> None:
    for number in (*TERMINATION_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # ignored signals would stay ignored after exec
    try:
        os.execvp(command[0], command)
    except OSError as error:
        supervisor.send(_NOT_STARTED + json.dumps([error.errno, error.strerror]).encode())


def confine(confinement: Confinement) -> int:
    """Applies all layers to this process and its future children.

    Returns:
        The file descriptor from which the broker answers calls.

    Raises:
        OSError: A layer is unavailable.
    """
    drop_inheritable_capabilities()
    switch_user(confinement.user)
    if confinement.landlock:
        landlock.restrict(confinement.access_rights(), at_least=confinement.landlock)
    drop_capabilities()
    listener = install_agent_filter(broker=True, metadata=not confinement.keeps_metadata)
    assert listener is not None
    return listener
