"""Tests that the commands in the README and the docs exist, with their options."""

import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

from a2rl.cli.commands import app
from a2rl.task_api.catalog import load_task

REPO = Path(__file__).resolve().parents[3]
PAGES = [*sorted(REPO.glob("*.md")), *sorted((REPO / "docs").rglob("*.md"))]
GROUPS = ("agents", "export", "leaderboard", "models", "suite", "tasks")
"""Commands of a2rl that have commands of their own."""
PLAIN_ENVIRONMENT = {"COLUMNS": "200", "PATH": "/usr/bin:/bin"}


def commands_of(page: Path) -> list[str]:
    """Returns the lines of a page's shell code blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


COMMANDS = sorted({command for page in PAGES for command in commands_of(page)})


def starting_with(program: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(f"{program} ")]


@cache
def help_of(*command: str) -> str:
    """Returns the help text of a program."""
    done = subprocess.run(
        [sys.executable, "-m", *command, "--help"],
        capture_output=True, text=True, check=False, cwd=REPO, env=PLAIN_ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def help_here(*named: str) -> str:
    """Returns the help text of a command of a2rl, without starting a process for it."""
    shown = CliRunner().invoke(app, [*named, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    return Text.from_ansi(shown.output).plain  # on GitHub it is coloured


def test_the_readme_shows_its_two_commands_first() -> None:
    assert commands_of(REPO / "README.md")[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", starting_with("make"))
def test_make_targets_exist(command: str) -> None:
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    for target in command.split()[1:]:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("command", starting_with("a2rl"))
def test_a2rl_commands_exist_with_the_options_shown(command: str) -> None:
    words = command.split()
    named = [word for word in words[1:3] if word == words[1] or words[1] in GROUPS]
    text = help_here(*named) or help_of("a2rl", *named)  # `redteam` leaves its help to another process
    task = words[words.index("--task") + 1] if "--task" in words else ""
    of_the_task = load_task(task, REPO).options if task.isidentifier() else {}  # others are folders and generators
    for option in (word for word in words if word.startswith("--")):
        assert option in text or option.removeprefix("--") in of_the_task


@pytest.mark.parametrize("command", starting_with("python"))
def test_python_programs_exist_with_the_options_shown(command: str) -> None:
    words = command.split()
    if words[1] != "-m":
        assert (REPO / words[1]).is_file()
        return
    assert find_spec(words[2]) is not None
    options = [word for word in words if word.startswith("--") and not word.startswith("--cov")]  # of pytest-cov
    text = help_of(words[2]) if options else ""
    assert [option for option in options if option not in text] == []


@pytest.mark.parametrize("command", starting_with("python -m pytest"))
def test_tests_that_are_named_exist(command: str) -> None:
    assert all((REPO / word).exists() for word in command.split() if word.startswith("tests/"))


def test_deployments_exist() -> None:
    deployments = re.findall(r"- name: (\S+)", (REPO / "prefect.yaml").read_text(encoding="utf-8"))
    shown = re.findall(r"prefect deployment run a2rl/(\S+)", "\n".join(COMMANDS))
    assert shown
    assert set(shown) <= set(deployments)


def test_suites_that_are_shown_exist() -> None:
    params = (REPO / "params.yaml").read_text(encoding="utf-8")
    for command in starting_with("a2rl bench"):
        assert re.search(rf"\b{command.split()[2]}\b", params)
