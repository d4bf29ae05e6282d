"""Finds agents by listing the folders in agents/. There is no registry to edit when an agent is added.

agent = find_agent("noop", root)   # agents/noop/agent.yaml
"""

from pathlib import Path

import yaml
from pydantic import ValidationError

from a2rl.agent_systems.definition import Agent
from a2rl.core.errors import TaskDefinitionError, UsageError, unknown_name
from a2rl.core.files import validation_message


def agent_ids(root: Path) -> list[str]:
    """Returns the names of the folders in agents/ that contain an agent.yaml."""
    return sorted(path.parent.name for path in (root / "agents").glob("*/agent.yaml"))


def find_agent(name: str, root: Path) -> Agent:
    """Returns an agent, given its id or the path of a start script.

    A start script is any script that bash can run, such as the reference's start.sh.

    Raises:
        UsageError: There is no agent with this id, or no script at this path.
        TaskDefinitionError: The agent's agent.yaml is not valid.
    """
    if "/" in name or name.endswith(".sh"):
        return _script_agent(Path(name))
    known = agent_ids(root)
    if name not in known:
        raise unknown_name("agent", name, known)
    folder = root / "agents" / name
    try:
        settings = yaml.safe_load((folder / "agent.yaml").read_text(encoding="utf-8"))
        return Agent(**{"id": name, **settings, "folder": folder})
    except ValidationError as error:
        raise TaskDefinitionError(f"agents/{name}/agent.yaml: {validation_message(error)}") from error
    except (yaml.YAMLError, TypeError) as error:
        raise TaskDefinitionError(f"agents/{name}/agent.yaml: {' '.join(str(error).split())}") from error


def _script_agent(script: Path) -> Agent:
    if not script.is_file():
        raise UsageError(
            f"no agent script {script}: --agent takes an id (see `a2rl agents`) or the path of a start script"
        )
    script = script.resolve()
    return Agent(
        id=script.parent.name or script.stem, title=str(script), start=("bash", str(script)), folder=script.parent
    )
