"""Tests the contract of every agent folder."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import agent_ids, find_agent
from a2rl.agent_systems.transcripts import formats

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
    program = {"program": sys.executable} if agent.install else {}
    command = agent.command(program)
    assert "{" not in "".join(command)
    assert shutil.which(command[0]) or Path(command[0]).is_file()
    files = [Path(part) for part in command if part.startswith(str(agent.folder))]
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("name", [name for name in AGENTS if find_agent(name, REPOSITORY).calls_llm])
def test_an_agent_that_an_llm_drives_says_all_that_a_run_needs(name: str) -> None:
    agent = find_agent(name, REPOSITORY)
    assert agent.install
    for pin in agent.install.pins:
        assert re.fullmatch(r"(@[\w.-]+/)?[\w.-]+(\[\w,-]+\])?(@|==)\d[\w.]*", pin), f"{pin} is not pinned"
    assert agent.program
    assert agent.driver
    assert agent.needs_one_of
    assert set(agent.needs_one_of) <= set(agent.forward_env)
    assert agent.hosts
    assert agent.transcript
    assert agent.transcript.format in formats()
    told = agent.command({"prompt": "what to do", "driver": "an-llm"})
    assert agent.messages or any("what to do" in part for part in told)
    where = "".join((*agent.env.values(), *agent.files.values(), *agent.start))
    assert "{base_url}" in where
    assert "{driver}" in where


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_asks_for_keys_by_name_and_holds_none(name: str) -> None:
    agent = find_agent(name, REPOSITORY)
    assert not [key for key in agent.env if key.endswith(("_KEY", "_TOKEN", "_SECRET"))]
    assert not set(agent.forward_env) & {"PATH", "HOME", "A2RL_ROOT", "PYTHONPATH", "MLFLOW_TRACKING_URI"}
