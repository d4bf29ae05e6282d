"""Which Python an agent system is installed with; what the registries bring is not tested here."""

import sys
from pathlib import Path

import pytest

from a2rl.agent import Agent, Install
from a2rl.errors import UsageError
from a2rl.installation import Installation
from a2rl.settings import Settings

NEWER = f"3.{sys.version_info.minor + 1}"


def installation(python: str | None, root: Path, path: Path) -> Installation:
    agent = Agent(
        id="newest", title="Newest", start=("{program}",), program="python", install=Install(pip="x==1", python=python)
    )
    return Installation(agent, Settings(root=root, environ={"PATH": str(path)}))


def executable(path: Path, says: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_too_old_is_said_before_anything_is_installed(tmp_path: Path) -> None:
    wanting = installation(NEWER, tmp_path, tmp_path / "bin")
    assert f"Python {NEWER} or newer" in wanting.missing(None)[0]
    with pytest.raises(UsageError, match=f"Python {NEWER} or newer"):
        wanting.install(lambda text: None)


def test_a_newer_python_is_found_on_path_and_may_be_read(tmp_path: Path) -> None:
    python = executable(tmp_path / "bin" / f"python{NEWER}", "echo /somewhere")
    found = installation(NEWER, tmp_path, tmp_path / "bin")
    assert "Python" not in found.missing(None)[0]
    (found.folder / "bin").mkdir(parents=True)
    (found.folder / "bin/python").symlink_to(python)
    assert found.extra_read == (found.folder, tmp_path)


def test_a_stand_in_for_a_python_that_is_not_there_is_none(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / f"python{NEWER}", "exit 127")
    assert f"Python {NEWER} or newer" in installation(NEWER, tmp_path, tmp_path / "bin").missing(None)[0]


def test_without_a_wish_the_python_of_a2rl_will_do(tmp_path: Path) -> None:
    assert "Python" not in installation(None, tmp_path, tmp_path / "bin").missing(None)[0]
