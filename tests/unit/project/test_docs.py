"""Tests that the docs agree with the code: events, files of a run, and the program that checks a ledger."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from a2rl.run.directory import RunDir
from a2rl.run.events import EVENTS, AgentStarted
from a2rl.run.ledger import Ledger

PAGE = Path("docs/run-directory.md")


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).resolve().parents[3] / PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_is_documented_with_all_of_its_fields(kind: str, page: str) -> None:
    [row] = re.findall(rf"^\| `{kind}` \|(.*)$", page, flags=re.MULTILINE)
    fields = re.findall(r"`(\w+)`", row.split("|")[-2])
    assert fields == list(EVENTS[kind].model_fields)


def test_no_event_is_documented_that_does_not_exist(page: str) -> None:
    table = page.partition("### Events")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == set(EVENTS)


def test_every_place_in_a_run_directory_is_documented(page: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "a")
    places = (
        run.workspace, run.given, run.checkpoints, run.grades, run.baseline_items, run.code, run.logs, run.trajectory,
        run.names, run.report, run.clock.path, run.ledger.path,
    )  # fmt: skip
    documented = set(re.findall(r"`([^`]+)`", page))
    for place in places:
        path = str(place.relative_to(run.root))
        names = {path, f"{path}/", place.name, *(name for name in documented if name.startswith(f"{path}/"))}
        assert names & documented, f"{path} is not in {PAGE}"


def test_every_log_is_documented(page: str, repository: Path) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (repository / "a2rl").rglob("*.py")]
    logs = {name for source in sources for name in re.findall(r'(?:logs / f?|"logs", )"([\w.-]+\.\w+)"', source)}
    assert {"agent.log", "api.jsonl"} <= logs
    assert {name for name in logs if f"`{name}`" not in page} == set()


def test_modules_that_a_docstring_or_a_comment_names_exist(repository: Path) -> None:
    for folder in ("a2rl", "flows", "stages", "tasks", "scripts"):
        for source in (repository / folder).rglob("*.py"):
            for named in re.findall(r"\b(?:a2rl|flows|stages)/[\w/]+\.py", source.read_text(encoding="utf-8")):
                assert (repository / named).exists(), f"{source.relative_to(repository)}: {named}"


def test_the_documented_program_checks_a_ledger(page: str, tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    ledger = Ledger(tmp_path / "ledger.db")
    for attempt in (1, 2):
        ledger.append(AgentStarted(attempt=attempt, elapsed_s=0.5))
    command = [sys.executable, "-c", program, str(ledger.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == ledger.verify(), done.stderr
