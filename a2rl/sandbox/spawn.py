"""Starts the process of an agent from its `AgentCommand`, in its control group and with its limits and confinement.

Standard library only: the supervisor imports this module.
"""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from a2rl.linux import resources
from a2rl.linux.cgroup import ControlGroup
from a2rl.linux.process_tree import die_with_parent
from a2rl.sandbox.broker.network_log import NetworkLog
from a2rl.sandbox.broker.server import Broker
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.launch import Launch, NotConfinedError

OUTPUT_TIMEOUT_S = 5.0


class AgentSpawner:
    """Starts one agent process."""

    def __init__(self, command: AgentCommand, group: ControlGroup | None, files: tuple[int, int]) -> None:
        """Prepares the limits.

        Args:
            command: What to run.
            group: The control group to limit, which the agent enters.
            files: The agent's soft and hard limit of open files.
        """
        self._command, self._group, self._files = command, group, files
        self._held = group.limit(command.resources) if group is not None else []
        self._running = resources.count_user_tasks()

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Starts the agent.

        Raises:
            OSError: Its program cannot be run.
            NotConfinedError: Its confinement failed.
        """
        command = self._command
        if command.confinement is None:
            return self._run(command.command)
        launch = Launch(command.command, command.confinement, command.cwd, command.env)
        agent = self._run(launch.command, launch.theirs.fileno())
        try:
            listener = launch.wait()
        except NotConfinedError as error:
            raise NotConfinedError(str(error) or _last_output_line(agent)) from error
        if listener is not None:
            Broker(listener, command.confinement, NetworkLog(Path(command.confinement.network_log))).start()
        return agent

    def _run(self, arguments: list[str], *files: int) -> "subprocess.Popen[bytes]":
        command = self._command
        assert threading.active_count() == 1, "with other threads, locks may be held between fork and exec"
        return subprocess.Popen(
            arguments,
            cwd=command.cwd,
            env=command.env,
            stdin=subprocess.PIPE if command.takes_messages else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if command.transcript else subprocess.STDOUT,
            start_new_session=True,
            pass_fds=files,
            preexec_fn=self._become_agent,  # noqa: PLW1509 - there are no threads yet
        )

    def _become_agent(self) -> None:
        die_with_parent()
        is_held = self._group is not None and self._group.enter()
        resources.restore_file_limit(self._files)
        resources.apply_limits(self._command.resources, self._held if is_held else (), self._running)


def _last_output_line(process: "subprocess.Popen[bytes]") -> str:
    process.kill()
    said = b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        said = b"\n".join(filter(None, process.communicate(timeout=OUTPUT_TIMEOUT_S)))
    lines = said.decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line), "it ended without a message")


@contextlib.contextmanager
def short_temporary_folder(command: AgentCommand) -> Iterator[AgentCommand]:
    """Gives the agent a short link to its TMPDIR for the duration of the context.

    Programs (Python's multiprocessing, vLLM, tmux) create local sockets there, whose paths are limited to 107
    characters.
    """
    if not (folder := command.env.get("TMPDIR")):
        yield command
        return
    link = Path("/tmp", f"a2rl-{os.urandom(6).hex()}")
    try:
        link.symlink_to(folder)
    except OSError:  # a machine that lets nobody write there; only such programs as need a short path would fail
        yield command
        return
    try:
        yield command._replace(env={**command.env, "TMPDIR": str(link)})
    finally:
        link.unlink(missing_ok=True)
