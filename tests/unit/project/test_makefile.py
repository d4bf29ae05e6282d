"""Tests what `make` and its scripts say and do on a machine that is not as expected."""

import os
import shutil
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, repository: Path) -> Path:
    shutil.copy(repository / "Makefile", tmp_path)
    for name in ("requirements.lock", "requirements-textworld.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    return tmp_path


def make(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["make", *arguments], cwd=folder, env={"PATH": path}, capture_output=True, text=True, check=False
    )


def test_an_environment_without_pip_such_as_one_of_uv_gets_it(folder: Path) -> None:
    venv.create(folder / ".venv", with_pip=False)
    done = make(folder, "setup", f"PYTHON={sys.executable}", "PIP=true")
    assert done.returncode == 0, done.stderr
    subprocess.run([folder / ".venv/bin/python", "-m", "pip", "--version"], check=True, capture_output=True)


def test_an_environment_of_another_python_is_refused_first(folder: Path) -> None:
    """Nothing is installed."""
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(shutil.which("false") or "/bin/false")
    refused = make(folder, "setup", f"PYTHON={sys.executable}", "PIP=false")
    assert refused.returncode == 2
    assert ".venv has no Python 3.11: remove it" in refused.stdout


def test_a_used_port_of_the_mlflow_page_is_named_with_a_remedy(folder: Path) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv/.installed").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = make(folder, "ui", f"PORT={port}")
    assert refused.returncode == 2
    assert refused.stdout == f"port {port} is in use: name another one with make ui PORT=...\n"


def test_a_service_is_not_started_on_a_port_that_is_in_use(tmp_path: Path, repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            [repository / "scripts/services.sh", "start", "redis"],
            env={"PATH": os.environ["PATH"], "A2RL_SERVICES": str(tmp_path), "A2RL_SERVICES_PORT": str(port - 1)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert refused.returncode == 1
    assert f"port {port} of redis is in use: A2RL_SERVICES_PORT names" in refused.stdout + refused.stderr
