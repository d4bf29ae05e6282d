"""The confinement of a run's agent: which files and ports it can reach.

confinement_of(run, agent, settings, isolation, connect=(grading_port, proxy_port), extra_read=(cli_folder,))
"""

from pathlib import Path

from a2rl.agent_systems.definition import Agent
from a2rl.config.provision import provision_of
from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.linux.gpus import driver_nodes
from a2rl.linux.placing import linked_originals
from a2rl.run.directory import RunDir
from a2rl.run.gpu_share import share_of
from a2rl.sandbox.confinement import Confinement
from a2rl.sandbox.isolation import Isolation
from a2rl.sandbox.namespaces import may_mount
from a2rl.sandbox.policy import contains_private_data, workspace_confinement
from a2rl.sandbox.users import assign_user, write_user_database


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
        run: A run with a workspace.
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
    python = (folder for folder in provision.python.folders if not contains_private_data(folder, settings))
    given = (run.given, *linked_originals(run.given))
    own = (*given, *definition_of(agent, settings), *python, *provision.read, *extra_read)
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
        run: The run whose directory is closed.
        keep_way: Whether the agent's own user must pass through the directory to reach its workspace. Then the
            permissions of everything else in the directory are removed instead.
    """
    if not keep_way:
        run.root.chmod(0o700)
        return
    run.root.chmod(0o711)
    for path in run.root.iterdir():
        if path not in (run.workspace, run.given, run.names) and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)


def definition_of(agent: Agent, settings: Settings) -> tuple[Path, ...]:
    """Returns the agent's folder. If it contains more than the agent, such as a checkout, only the files that the
    definition names are returned."""
    if not contains_private_data(agent.folder, settings):
        return (agent.folder,)
    named = (Path(part) for part in agent.command())
    return tuple(path for path in named if path.is_absolute() and path.is_file())
