"""Starting an agent in its confinement: `Launch` in the supervisor, and `main` in the process that becomes the agent.

Contract: the agent's command runs only when all of its confinement is in force, else `Launch` raises NotConfined. What
confines it applies to that process and all that it starts; the supervisor stays outside, so that it can end them.

    python -I -S -c START <folder of a2rl> <file descriptor> <confinement> <command> ...

A program between the two, and not work between fork and exec: with bwrap the process that confines itself is already in
a world of its own. It costs what it takes to start Python. Only the standard library is imported.
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
from a2rl.isolation.bwrap import bwrap_command
from a2rl.isolation.calls import withhold
from a2rl.isolation.confinement import Confinement
from a2rl.isolation.namespaces import ENDING, be_first, become, drop_capabilities, enter, forget_capabilities
from a2rl.sandbox import landlock

START = "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); from a2rl.isolation.launch import main"
START += "; sys.path.remove(root); main(*sys.argv[1:])"
MAX_MESSAGE = 1 << 12
_CONFINED, _NOT_CONFINED, _NOT_STARTED = b"+", b"-", b"!"


class NotConfined(Exception):
    """The confinement could not be had, so nothing was started."""


class Launch:
    """One start of an agent."""

    def __init__(self, command: Sequence[str], confinement: Confinement, cwd: str, env: Mapping[str, str]) -> None:
        self._name = command[0]
        self._ours, self.theirs = socket.socketpair()
        root = str(Path(a2rl.__file__).parent.parent)
        own = [sys.executable, "-I", "-S", "-c", START, root, str(self.theirs.fileno()), json.dumps(confinement)]
        prefix = bwrap_command(confinement, cwd, env) if confinement.bwrap else []
        self.command = [*prefix, *own, *command]

    def wait(self) -> int | None:
        """To be called when `command` was started with `theirs` open in it: the file to broker connections from.

        Raises:
            NotConfined: with what is missing, where the process that should have become the agent could say it.
            OSError: the agent's program could not be started.
        """
        self.theirs.close()
        with self._ours:
            message, files, _, _ = socket.recv_fds(self._ours, MAX_MESSAGE, 1)
            if message[:1] != _CONFINED:
                raise NotConfined(message[1:].decode())
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
            telling = enter(wanted)
            listener = confine(wanted)
        except OSError as error:
            supervisor.send(_NOT_CONFINED + str(error.strerror or error).encode())
            return
        socket.send_fds(supervisor, [_CONFINED], [listener])
        os.close(listener)  # whoever has it answers for the broker
        if telling is not None and (agent := os.fork()):
            supervisor.close()
            be_first(agent, telling)
        _start(command, supervisor)


def _start(command: tuple[str, ...], supervisor: socket.socket) -> None:
    for number in (*ENDING, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # what is ignored stays ignored
    try:
        os.execvp(command[0], command)
    except OSError as error:
        supervisor.send(_NOT_STARTED + json.dumps([error.errno, error.strerror]).encode())


def confine(confinement: Confinement) -> int:
    """All layers, for this process and what it starts; the file to broker connections from.

    Raises:
        OSError: a layer is unavailable.
    """
    forget_capabilities()
    become(confinement.user)
    if confinement.landlock:
        landlock.restrict(confinement.reach(), at_least=confinement.landlock)
    drop_capabilities()
    listener = withhold(broker=True, metadata=not confinement.keeps_metadata)
    assert listener is not None
    return listener
