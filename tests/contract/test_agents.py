"""What every agent folder promises."""

import shutil
from pathlib import Path

import pytest

from a2rl.catalog import agent_ids, find_agent

REPOSITORY = Path(__file__).resolve().parents[2]
AGENTS = agent_ids(REPOSITORY)


def test_there_are_agents() -> None:
    assert {"noop", "copy-base"} <= set(AGENTS)


def test_every_folder_of_agents_is_an_agent() -> None:
    folders = {path.name for path in (REPOSITORY / "agents").iterdir() if path.is_dir() and any(path.iterdir())}
    assert folders - {"__pycache__"} == set(AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_loads_and_what_it_starts_is_there(name: str) -> None:
    agent = find_agent(name, REPOSITORY)
    assert agent.id == name
    assert agent.title
    command = agent.command()
    assert "{" not in "".join(command)
    assert shutil.which(command[0]) or Path(command[0]).is_file()
    files = [Path(part) for part in command if part.startswith(str(agent.folder))]
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_asks_for_keys_by_name_and_holds_none(name: str) -> None:
    agent = find_agent(name, REPOSITORY)
    assert not [key for key in agent.env if key.endswith(("_KEY", "_TOKEN", "_SECRET"))]
    assert not set(agent.forward_env) & {"PATH", "HOME", "A2RL_ROOT", "PYTHONPATH", "MLFLOW_TRACKING_URI"}
