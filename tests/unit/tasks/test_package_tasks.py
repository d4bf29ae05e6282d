"""Tests what tasks from packages of others become, with a fake of the packages' interpreter."""

import json
from pathlib import Path
from typing import Any

import pytest

import tasks
from a2rl.core.errors import UsageError
from a2rl.handout.rows import asked
from a2rl.task_api.catalog import find_task, load_grader, load_preparer, load_task, task_folder

SAID = {
    "title": "Sums'\"\"\"\n__import__('os').abort()",
    "description": 'Adds ${numbers} and """.',
    "items": 12,
    "version": "1.0",
    "licence": 'MIT"""',
    "data": ["own/sums"],
    "lacks": "the data set own/sums'",
    "needs": [],
    "calls": ["match"],
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path / "root/data/tasks")])
    return tmp_path / "root"


def named(name: str, said: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Names a task whose package says this."""
    root.mkdir()
    (root / "said.json").write_text(json.dumps(said) + "\n")
    python = root / "python"
    python.write_text(f"#!/bin/sh\ncat {root}/said.json\n")
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_TASKS_PYTHON", str(python))
    return find_task(name, root)


def test_what_a_package_says_of_itself_is_no_code(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = named("inspect:own/sums?digits=2", SAID, root, monkeypatch)
    task = load_task(task_id, root)
    assert (task.title, task.needs_source) == (SAID["title"], SAID["lacks"])
    assert task.full is not None
    assert task.full.eval_items == 12
    assert "Adds ${numbers}" in (task_folder(task_id, root) / "description.md").read_text()
    assert load_grader(task_id)
    assert load_preparer(task_id)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"needs": ["containers (Docker)", "a GPU"]}, r"it needs containers \(Docker\), and a GPU"),
        ({"calls": ["match", "eval"]}, "decide its own value"),
        ({"data": ["../../home"]}, "no name of a data set"),
        ({"items": None}, "how many items"),
        ({"items": "12)"}, "how many items"),
    ],
)
def test_an_evaluation_that_cannot_be_used_is_refused(
    said: dict[str, Any], why: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=why):
        named("inspect:own/sums", {**SAID, **said}, root, monkeypatch)


def test_a_chat_becomes_a_text_for_models_without_a_template() -> None:
    class Items:
        prompt = staticmethod(lambda row: row["messages"])

    row = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]}
    assert asked(Items, row, chat=True) == row["messages"]
    assert asked(Items, row, chat=False) == "Be brief.\n\n1 + 1?\n"
