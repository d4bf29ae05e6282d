"""From an `AgentCommand` to a running agent: in its control group, limited, and confined if it is to be.

Only the standard library is imported.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from a2rl.isolation import resources
from a2rl.isolation.broker import Broker
from a2rl.isolation.cgroup import Group
from a2rl.isolation.launch import Launch, NotConfined
from a2rl.isolation.network_log import NetworkLog

if TYPE_CHECKING:
    from a2rl.supervisor import AgentCommand

PR_SET_PDEATHSIG = 1
LAST_WORDS_S = 5.0


def die_with_parent() -> None:
    """The kernel kills the calling process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Start:
    """One start of an agent."""

    def __init__(self, command: "AgentCommand", group: Group | None, files: tuple[int, int]) -> None:
        """Args:
        group: to be limited, and entered by the agent.
        files: its limit of open files.
        """
        self._command, self._group, self._files = command, group, files
        self._held = group.limit(command.resources) if group is not None else []
        self._running = resources.count_running()

    def agent(self) -> "subprocess.Popen[bytes]":
        """Raises OSError: its program cannot be run; NotConfined: nor may it."""
        command = self._command
        if command.confinement is None:
            return self._run(command.command)
        launch = Launch(command.command, command.confinement, command.cwd, command.env)
        agent = self._run(launch.command, launch.theirs.fileno())
        try:
            listener = launch.wait()
        except NotConfined as error:
            raise NotConfined(str(error) or _last_words(agent)) from error
        if listener is not None:
            Broker(listener, command.confinement, NetworkLog(Path(command.confinement.network_log))).start()
        return agent

    def _run(self, arguments: list[str], *files: int) -> "subprocess.Popen[bytes]":
        command = self._command
        assert threading.active_count() == 1, "between fork and exec of a process with threads anything may be locked"
        return subprocess.Popen(
            arguments,
            cwd=command.cwd,
            env=command.env,
            stdin=subprocess.PIPE if command.takes_messages else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if command.transcript else subprocess.STDOUT,
            start_new_session=True,
            pass_fds=files,
            preexec_fn=self._become_agent,  # noqa: PLW1509 - no threads yet
        )

    def _become_agent(self) -> None:
        die_with_parent()
        is_held = self._group is not None and self._group.enter()
        resources.restore_file_limit(self._files)
        resources.apply(self._command.resources, self._held if is_held else (), self._running)


def _last_words(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    said = b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        said = b"\n".join(filter(None, process.communicate(timeout=LAST_WORDS_S)))
    lines = said.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line), "it died without a word")


@contextlib.contextmanager
def short_temporary_folder(command: "AgentCommand") -> Iterator["AgentCommand"]:
    """Gives the agent's TMPDIR a short name besides its own.

    Programs (Python's multiprocessing, vLLM, tmux) make local sockets there, and a socket's path has 107 characters.
    """
    if not (folder := command.env.get("TMPDIR")):
        yield command
        return
    link = Path("/tmp", f"a2rl-{os.urandom(6).hex()}")
    link.symlink_to(folder)
    try:
        yield command._replace(env={**command.env, "TMPDIR": str(link)})
    finally:
        link.unlink(missing_ok=True)
