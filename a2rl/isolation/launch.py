"""Starting an agent in its confinement: `Launch` in the supervisor, and `main` in the process that becomes the agent.

Contract: the agent's command runs only when all of its confinement is in force, else `Launch` raises NotConfined. What
confines it applies to that process and all that it starts; the supervisor stays outside, so that it can end them.

    python -I -S -c START <folder of a2rl> <file descriptor> <confinement> <command> ...

A program between the two, and not work between fork and exec: with bwrap the process that confines itself is already in
a world of its own. It costs what it takes to start Python. Only the standard library is imported.
"""

import ctypes
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import a2rl
from a2rl.isolation.bwrap import bwrap_command
from a2rl.isolation.calls import withhold
from a2rl.isolation.confinement import Confinement
from a2rl.sandbox import landlock

START = "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); from a2rl.isolation.launch import main"
START += "; sys.path.remove(root); main(*sys.argv[1:])"
MAX_MESSAGE = 1 << 12
_CONFINED, _NOT_CONFINED, _NOT_STARTED = b"+", b"-", b"!"
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 23, 24, 47, 4


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
    with socket.socket(fileno=int(channel)) as supervisor:
        supervisor.set_inheritable(False)
        try:
            listener = confine(Confinement.of(json.loads(confinement)))
        except OSError as error:
            supervisor.send(_NOT_CONFINED + str(error.strerror or error).encode())
            return
        socket.send_fds(supervisor, [_CONFINED], [] if listener is None else [listener])
        try:
            os.execvp(command[0], command)
        except OSError as error:
            supervisor.send(_NOT_STARTED + json.dumps([error.errno, error.strerror]).encode())


def confine(confinement: Confinement) -> int | None:
    """All layers, for this process and what it starts; the file to broker connections from, if there is a broker.

    Raises:
        OSError: a layer is not to be had.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if confinement.landlock:
        landlock.restrict(confinement.reach())
    drop_capabilities()
    return withhold(confinement.broker)


def drop_capabilities() -> None:
    """All of them, and the ways to get them back: what runs as root from here on is root in name only."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to who has none: there is nothing to drop then
        capability += 1
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    if libc.syscall(_CAPSET[os.uname().machine], header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")
