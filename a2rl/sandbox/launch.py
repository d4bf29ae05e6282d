"""Starts an agent in its confinement: `Launch` in the supervisor, and `main` in the process that becomes the agent.

Contract: the agent's command runs only if its whole confinement is in force; else, `Launch` raises NotConfinedError.
The confinement applies to that process and all its descendants; the supervisor stays outside, so that it can end them.

    python -I -S -c START <folder of a2rl> <file descriptor> <command> ...

The confinement arrives through the file descriptor, a socket: it may name more files than fit into an argument.

This is a separate program and not code between fork and exec, because with bwrap the process that confines itself is
already inside bwrap's namespaces. It costs one start of Python. With bwrap, only the files that a `Confinement` names
exist: the names and metadata of other files, and the command lines of other processes, are invisible. The agent has its
own /dev/shm and terminals, but shares the machine's network. So Landlock, seccomp and the broker are applied inside, as
they are without bwrap. Source: the manual's bwrap(1). Standard library only, because it starts without the installed
packages.
"""

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import a2rl
from a2rl.linux import landlock
from a2rl.linux.resources import GPU_NODES
from a2rl.sandbox.command import Confinement
from a2rl.sandbox.namespaces import (
    TERMINATION_SIGNALS,
    drop_capabilities,
    drop_inheritable_capabilities,
    enter_namespaces,
    run_as_init,
    switch_user,
)
from a2rl.sandbox.syscall_rules import install_agent_filter

ALONE = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent")
TMP = Path("/tmp")
OWN = ("proc", "dev")
"""Top-level folders that are created inside instead of being mounted from the machine."""
IMPORTED = ("__init__.py", "linux", "sandbox")
"""What this program imports of a2rl. With bwrap, the agent can read it where there is no Landlock to hide it."""
START = (
    "import sys; root = sys.argv.pop(1); sys.path.insert(0, root); from a2rl.sandbox.launch import main; "
    "sys.path.remove(root); main(*sys.argv[1:])"
)
MAX_MESSAGE = 1 << 12
_CONFINED, _NOT_CONFINED, _NOT_STARTED = b"+", b"-", b"!"


def bwrap_command(confinement: Confinement, cwd: str, env: Mapping[str, str]) -> list[str]:
    """Returns the start of a command line with bwrap (bubblewrap), which the launcher's command follows.

    Args:
        confinement: What the agent may access.
        env: The agent's environment; links that it names in /tmp are recreated inside.
    """
    package = Path(a2rl.__file__).parent
    binds = [("--ro-bind", path) for path in (*confinement.read, *(str(package / name) for name in IMPORTED))]
    binds += [("--bind", path) for path in confinement.write]
    # Not Path.exists, which raises for paths in a folder that this user may not enter.
    binds = [(kind, path) for kind, path in binds if Path(path).parts[1] not in OWN and os.path.exists(path)]  # noqa: PTH110
    devices = [("--dev-bind-try", path) for path in confinement.use if Path(path).name.startswith(GPU_NODES)]
    binds.sort(key=lambda bind: len(Path(bind[1]).parts))
    mounts = [word for kind, path in binds + devices for word in (kind, path, path)]
    links = [word for path in env.values() if Path(path).parent == TMP and os.path.islink(path)  # noqa: PTH114
             for word in ("--symlink", os.readlink(path), path)]  # fmt: skip # noqa: PTH115
    names = [word for name in ("passwd", "group") if confinement.names
             for word in ("--ro-bind", f"{confinement.names}/{name}", f"/etc/{name}")]  # fmt: skip
    parents = _parent_folders(path for _, path in binds) if confinement.user else []
    for_all = ("--perms", "1777") if confinement.user else ()
    own = ["--proc", "/proc", "--dev", "/dev", *for_all, "--tmpfs", "/dev/shm", *for_all, "--tmpfs", "/tmp"]
    return [confinement.bwrap, *ALONE, *own, *links, *parents, *mounts, *names, "--chdir", cwd, "--"]


def _parent_folders(paths: Iterable[str]) -> list[str]:
    """Returns the options that create the folders above paths; bwrap's own would be closed to other users."""
    above = dict.fromkeys(str(folder) for path in paths for folder in reversed(Path(path).parents) if folder.name)
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)]


class NotConfinedError(Exception):
    """The confinement could not be applied, so nothing was started."""


class Launch:
    """Starts one agent; run `command`, let it inherit the socket `theirs`, then call `wait`."""

    def __init__(self, command: Sequence[str], confinement: Confinement, cwd: str, env: Mapping[str, str]) -> None:
        self._confinement = confinement
        self._ours, self.theirs = socket.socketpair()
        root = str(Path(a2rl.__file__).parent.parent)
        own = [sys.executable, "-I", "-S", "-c", START, root, str(self.theirs.fileno())]
        prefix = bwrap_command(confinement, cwd, env) if confinement.bwrap else []
        self.command = [*prefix, *own, *command]

    def wait(self) -> int | None:
        """Hands over the confinement and waits for it; call it once `command` has started and inherited `theirs`.

        Returns:
            The file descriptor from which the broker answers calls.

        Raises:
            NotConfinedError: The confinement failed; the message is empty if the process died without a reason.
            OSError: The agent's program could not be started.
        """
        self.theirs.close()
        with self._ours:
            message, files = b"", list[int]()
            with suppress(ConnectionError):  # it died before it read all
                self._ours.sendall(json.dumps(self._confinement).encode() + b"\n")
                message, files, _, _ = socket.recv_fds(self._ours, MAX_MESSAGE, 1)
            if message[:1] != _CONFINED:
                raise NotConfinedError(message[1:].decode())
            if failed := self._ours.recv(MAX_MESSAGE):
                raise OSError(*json.loads(failed[1:]))
        return files[0] if files else None


def main(channel: str, *command: str) -> None:
    """Confines this process, then becomes the command."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=int(channel)) as supervisor:
        supervisor.set_inheritable(False)
        wanted = Confinement.of(json.loads(supervisor.makefile("rb").readline()))
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
