"""Tests the contract of every agent folder."""

import re
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from a2rl.agent_systems.definition import agent_ids, find_agent
from a2rl.agent_systems.transcripts import formats
from tests.as_nobody import as_nobody, folder_of_nobody

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


def test_the_smallest_agent_starts_again_and_waits_for_any_grade(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(url: str, json: dict[str, str], timeout: float | None) -> SimpleNamespace:
        assert timeout is None
        assert (Path(json["model_path"]) / "weights").read_text() == "w"
        return SimpleNamespace(status_code=200, text=url)

    def start_twice() -> None:
        (root / "model").mkdir()
        (root / "model/weights").write_text("w")
        (root / "model/weights").chmod(0o444)
        (root / "model").chmod(0o555)
        for _ in range(2):
            runpy.run_path(str(root / "agent.py"))

    monkeypatch.setattr(requests, "post", post)
    monkeypatch.setenv("GRADING_SERVER_URL", "http://127.0.0.1:9")
    with folder_of_nobody() as root:
        shutil.copy(REPOSITORY / "agents/copy-base/agent.py", root)
        monkeypatch.setenv("MODEL_PATH", str(root / "model"))
        monkeypatch.setenv("OUTPUT_DIR", str(root / "output"))
        as_nobody(start_twice)
