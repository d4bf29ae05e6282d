"""The README's commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from a2rl.catalog import load_task

REPO = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```bash\n(.*?)```", (REPO / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
COMMANDS = [line.partition("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]


def test_the_readme_shows_its_two_commands_first() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_make_targets_of_the_readme_exist(command: str) -> None:
    target = command.split()[1]
    assert re.search(rf"^{target}:", (REPO / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("a2rl ")])
def test_a2rl_commands_of_the_readme_exist_with_the_options_shown(command: str) -> None:
    words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "a2rl", words[1], "--help"], capture_output=True, text=True, check=False, cwd=REPO,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0
    of_the_task = load_task(words[words.index("--task") + 1], REPO).options if "--task" in words else {}
    for option in (word for word in words if word.startswith("--")):
        assert option in done.stdout or option.removeprefix("--") in of_the_task


def test_deployments_of_the_readme_exist() -> None:
    deployments = re.findall(r"- name: (\S+)", (REPO / "prefect.yaml").read_text(encoding="utf-8"))
    shown = re.findall(r"prefect deployment run a2rl/(\S+)", "\n".join(COMMANDS))
    assert shown
    assert set(shown) <= set(deployments)


def test_files_that_the_readme_shows_exist() -> None:
    for path in re.findall(r"!\[.*?\]\((.*?)\)", (REPO / "README.md").read_text(encoding="utf-8")):
        assert (REPO / path).is_file()
