"""Tests what tasks from packages of others become, with a fake of the packages' interpreter."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tasks
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.handout.rows import asked
from a2rl.task_api import inspect_tasks, packages
from a2rl.task_api.catalog import find_task, load_grader, load_preparer, load_task, task_folder
from a2rl.task_api.reasoning_gym import Generator

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


def fake_python(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_TASKS_PYTHON", str(python))


def named(name: str, said: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Names a task whose package says this."""
    root.mkdir()
    (root / "said.json").write_text(json.dumps(said) + "\n")
    fake_python(root, f"cat {root}/said.json", monkeypatch)
    return find_task(name, root)


def test_what_a_package_says_of_itself_is_no_code(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = named("inspect:own/sums?digits=2&most=Infinity", SAID, root, monkeypatch)
    task = load_task(task_id, root)
    assert (task.title, task.needs_source) == (SAID["title"], SAID["lacks"])
    assert task.full is not None
    assert task.full.eval_items == 12
    assert "Adds ${numbers}" in (task_folder(task_id, root) / "description.md").read_text()
    assert load_grader(task_id)
    assert load_preparer(task_id)
    assert "{'digits': 2, 'most': 'Infinity'}" in (task_folder(task_id, root) / "prepare.py").read_text()


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


COUNTING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "make" in asked:
        numbers = map(str, range(asked["count"]))
        print(json.dumps({"rows": [{"question": f"{n}?", "answer": n, "entry": {"answer": n}} for n in numbers]}))
    elif "score" in asked:
        said, right = asked["score"], asked["entry"]["answer"]
        print(json.dumps({"value": float(said) if "." in said else float(said == right)}))
    else:
        print(json.dumps({"calls": []}))
"""
"""What the package does with a generator whose scorer gives an answer the value that it names."""


def test_agents_are_told_the_reward_of_the_grader(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    (root / "counting.py").write_text(COUNTING)
    fake_python(root, f"exec {sys.executable} {root}/counting.py", monkeypatch)
    task_id = find_task("reasoning_gym:counting", root)
    items, row = importlib.import_module(f"tasks.{task_id}.items"), {"answer": "7", "entry": {"answer": "7"}}
    scorer = SimpleNamespace(score_answer=lambda answer, entry: answer)
    package = SimpleNamespace(create_dataset=lambda name, **_: scorer)
    monkeypatch.setitem(sys.modules, "reasoning_gym", package)
    said = ["0.01", "0.5", "0.7", "0.99", "1.0"]
    told = [items.reward(row, f"<answer>{each}</answer>") for each in said]
    assert told == Generator("counting", {}).rewards([(row, each) for each in said]) == [0, 0, 0, 0, 1]
    assert "a value below 1.0 counts as 0" in (task_folder(task_id, root) / "description.md").read_text()


def test_a_process_that_is_killed_amid_a_reply_has_ended_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path, """printf '{"value": 1.0}\\n{"val'""", monkeypatch)
    with pytest.raises(InfrastructureError, match="ended early"):
        inspect_tasks.Evaluation("own/sums", {}).rewards([({"entry": {}}, "1")] * 2)


def test_many_answers_may_take_longer_than_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "TIMEOUT_S", 0.1)
    fake_python(tmp_path, """while read -r line; do sleep 0.1; echo '{"value": 1.0}'; done""", monkeypatch)
    assert inspect_tasks.Evaluation("own/sums", {}).rewards([({"entry": {}}, "1")] * 5) == [1.0] * 5


def test_data_that_was_downloaded_at_another_time_is_the_same(tmp_path: Path) -> None:
    archives = []
    for when in ("1", "2"):
        source = tmp_path / when
        (source / "own/sums/.cache/huggingface").mkdir(parents=True)
        (source / "own/sums/.cache/huggingface/test.csv.metadata").write_text(when)
        (source / "own/sums/test.csv").write_text("1,2")
        inspect_tasks._pack(source, ["own/sums"], tmp_path / f"{when}.tar")
        archives.append((tmp_path / f"{when}.tar").read_bytes())
    assert archives[0] == archives[1]


def test_a_chat_becomes_a_text_for_models_without_a_template() -> None:
    class Items:
        prompt = staticmethod(lambda row: row["messages"])

    row = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]}
    assert asked(Items, row, chat=True) == row["messages"]
    assert asked(Items, row, chat=False) == "Be brief.\n\n1 + 1?\n"
