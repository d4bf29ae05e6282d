"""Makes the command that the supervisor starts, from a run and an agent's definition, with the files and ports that it
can reach.

    with Gateway(run, agent, settings) as gateway:                      # connects to the LLM, if the agent needs one
        command = agent_command(run, agent, settings, grading, gateway, attempt)
"""

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from a2rl.agent_systems.definition import Agent
from a2rl.agent_systems.installation import Installation
from a2rl.config.provision import Provision, provision_of
from a2rl.core.errors import InfrastructureError
from a2rl.core.secrets import known_secrets
from a2rl.core.settings import Settings
from a2rl.execution.workspace import agent_environment, write_into_workspace
from a2rl.grading.service_process import ServiceProcess
from a2rl.linux.gpus import driver_nodes
from a2rl.linux.orphans import TRACE
from a2rl.linux.placing import linked_originals
from a2rl.linux.resources import Resources
from a2rl.llm.gateway import Gateway
from a2rl.recording.trajectory import transcript_path
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentConfined
from a2rl.run.gpu_share import share_of
from a2rl.run.records import SetupRecord
from a2rl.sandbox.command import AgentCommand, Confinement
from a2rl.sandbox.isolation import Isolation
from a2rl.sandbox.namespaces import may_mount
from a2rl.sandbox.policy import may_open_agent, readable_parts, workspace_confinement
from a2rl.sandbox.selection import reselect_sandbox
from a2rl.sandbox.storage import bytes_below
from a2rl.sandbox.users import NAME, assign_user, write_user_database

SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
"""A session id as agent systems create it. The agent can write it, so it must not be able to act as an option of the
command."""
UNLIMITED_TURNS = 1_000_000


class Attempt(NamedTuple):
    """A start of the agent."""

    number: int
    prompt: str
    """Empty for an agent that no LLM drives."""
    session: str | None
    """The session to continue, if one was interrupted."""
    time_s: float
    """How long it may take."""
    reserved_s: float = 0.0
    """What must be left of the run's budget when it ends, for further trials."""


def confinement_of(
    run: RunDir,
    agent: Agent,
    settings: Settings,
    isolation: Isolation,
    connect: tuple[int, ...],
    extra_read: tuple[Path, ...] = (),
) -> Confinement | None:
    """Returns what the agent can reach; None if the run has no sandbox.

    If the agent has its own user, that user becomes the owner of the workspace.

    Args:
        agent: The agent, which may read its own definition.
        settings: The settings of this checkout; of the checkout only the Python environment is readable.
        isolation: The layers of the sandbox (a2rl/sandbox/selection.py).
        connect: TCP ports on loopback that the agent may connect to.
        extra_read: Further files and folders that it may read, such as those of a CLI.

    Raises:
        UsageError: Something that the run or the agent names does not exist, or must not be read.
        InfrastructureError: The owner of the workspace cannot be changed.
    """
    provision = provision_of(run.spec, agent, settings)
    installed = (part for folder in extra_read for part in readable_parts(folder, settings))
    named = readable_by(agent, provision, run.spec.source, settings)
    own = (run.given, *linked_originals(run.given), *named, *installed)
    user = _own_user(run, isolation)
    gpus = driver_nodes(share_of(run, settings).agent)
    log = run.logs / "network.jsonl"
    found = workspace_confinement(run.workspace, isolation, settings, own, connect, log, user, gpus)
    return found._replace(names=str(run.names)) if found and user else found


def _own_user(run: RunDir, isolation: Isolation) -> int:
    """Gives the workspace to the agent's own user, and closes the rest of the run to others.

    Returns:
        The id of that user; 0 if the agent has none.
    """
    user = 0
    try:
        if "user" in isolation.layers:
            user = assign_user(run.workspace)
            write_user_database(run.names, user, run.workspace / ".home")
        opens_up = isolation.kind == "bwrap" or ("devices" in isolation.layers and may_mount())
        close_to_others(run, keep_way=bool(user) and not opens_up)
    except OSError as error:
        raise InfrastructureError(
            f"the owner of the workspace cannot be changed to the agent's user: {error}"
        ) from error
    return user


def close_to_others(run: RunDir, keep_way: bool) -> None:
    """Removes the permissions of other users for the grader's files.

    Args:
        keep_way: Whether the agent's own user must pass through the directory to reach its workspace. Then the
            permissions of everything else in the directory are removed instead.
    """
    if not keep_way:
        run.root.chmod(0o700)
        return
    run.root.chmod(0o711)
    for path in run.root.iterdir():
        if path not in (run.workspace, run.given, run.names) and not path.is_symlink():
            with suppress(FileNotFoundError):  # such as a journal of the ledger, or a file that was being written
                path.chmod(path.stat().st_mode & 0o700)


def readable_by(agent: Agent, provision: Provision, source: str | None, settings: Settings) -> tuple[Path, ...]:
    """Returns the agent's definition, the Python environment with which it trains, and what else it may read.

    The definition is the agent's folder. If that contains more than the agent, such as a checkout, it is the files that
    the definition names.
    """
    definition = [agent.folder]
    if not may_open_agent(agent.folder, settings, Path(source) if source else None):
        named = (Path(part) for part in agent.command())
        definition = [path for path in named if path.is_absolute() and path.is_file()]
    python = (part for folder in provision.python.folders for part in readable_parts(folder, settings))
    return (*definition, *python, *provision.read)


def agent_command(
    run: RunDir, agent: Agent, settings: Settings, grading: ServiceProcess, gateway: Gateway, attempt: Attempt
) -> AgentCommand:
    """Returns the command of a start, or of a session's continuation, and writes the agent system's settings.

    Raises:
        UsageError: This machine cannot confine the agent as requested, or as when the run started.
        SpoiledWorkspaceError: The agent has changed its HOME so that its settings cannot be written.
        InfrastructureError: The settings cannot be written for another reason, such as a full disk.
    """
    session = attempt.session if attempt.session and agent.resume and SESSION.fullmatch(attempt.session) else None
    installation = Installation(agent, settings)
    isolation = reselect_sandbox(run.spec.sandbox, run.need("setup", SetupRecord).sandbox, settings)
    told = {"prompt": attempt.prompt, "session": session or "", "attempt": str(attempt.number)}
    names = told | _names(run, installation, gateway)
    environment = agent_environment(run, agent, grading.url, settings, names, installation.paths)
    _write_settings(run, agent, names, environment["PATH"])
    ports = (grading.port, *gateway.ports)
    confinement = confinement_of(run, agent, settings, isolation, ports, installation.extra_read)
    gpus = tuple(gpu.uuid for gpu in share_of(run, settings).agent)
    run.ledger.append(AgentConfined(attempt=attempt.number, sandbox=isolation, gpus=gpus))
    user = {"USER": NAME, "LOGNAME": NAME} if confinement and confinement.user else {}
    return AgentCommand(
        command=agent.resume_command(names) if session else agent.command(names),
        cwd=str(run.workspace),
        env={**environment, **user, **gateway.environment},
        log=str(run.agent_log),
        transcript=str(transcript_path(run, agent, attempt.number) or ""),
        takes_messages=agent.messages is not None,
        secrets=known_secrets(),
        confinement=confinement,
        resources=Resources.of_machine(run.workspace, settings.environ, bytes_below([str(run.workspace)]).used),
        trace=str(run.logs / TRACE),
    )


def _names(run: RunDir, installation: Installation, gateway: Gateway) -> dict[str, str]:
    """Returns what a definition may name that is the same for all starts of a run."""
    return {
        "program": str(installation.program or ""),
        "agent_dir": str(installation.agent.folder),
        "workspace": str(run.workspace),
        "home": str(run.workspace / ".home"),
        "driver": run.spec.driver or "",
        "base_url": gateway.base_url,
        "max_turns": str(run.spec.max_turns or ""),
    }


def _write_settings(run: RunDir, agent: Agent, names: dict[str, str], path: str) -> None:
    """Writes the files of the agent's definition, and a login profile, into the agent's HOME."""
    # A settings file needs a number of turns, where a command line can leave the option out.
    names = {**names, "max_turns": str(run.spec.max_turns or UNLIMITED_TURNS)}
    # Some agent systems run commands in a login shell, which would otherwise start with the machine's own PATH.
    profile = f"export PATH={shlex.quote(path)}\n"
    files = {".profile": profile, **{name: text.format(**names) for name, text in agent.files.items()}}
    write_into_workspace(run.workspace, {f".home/{name}": text for name, text in files.items()})
