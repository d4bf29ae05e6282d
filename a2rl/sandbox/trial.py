"""Runs a program for a moment in the sandbox of an agent, before there is a run: what it says shows what will work."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.isolation import Isolation
from a2rl.sandbox.policy import workspace_confinement
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.users import give_to_user, unused_user

TIMEOUT_S = 30.0
MAX_OUTPUT = 4096


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
    timeout_s: float = TIMEOUT_S,
) -> TrialEnd:
    """Runs a program as an agent would run it, in an empty workspace that is also its HOME.

    Args:
        command: The command line.
        isolation: The layers of the sandbox.
        settings: The settings of this checkout.
        env: Environment variables, besides HOME and TMPDIR.
        read: What it may read in addition to the system and Python.
        connect: The loopback ports that it may connect to.
        gpus: The device files of the GPUs that it may use.
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
