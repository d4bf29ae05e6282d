"""Tests tasks of reasoning_gym with the package itself, which `make setup-tasks` installs."""

import json
from pathlib import Path

import pytest

import tasks
from a2rl.core.errors import TaskDefinitionError, UsageError
from a2rl.core.settings import Settings
from a2rl.task_api.catalog import find_task, load_preparer
from a2rl.task_api.check import TaskCheck
from a2rl.task_api.contract import TWINS
from a2rl.task_api.reasoning_gym import Generator
from tests.run_maker import REPOSITORY

needs_package = pytest.mark.skipif(not Settings.load().tasks_python.is_file(), reason="make setup-tasks")
CLEAN = ("spell_backward", "chain_sum?min_terms=3&max_terms=5", "word_sorting", "base_conversion")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path / "root/data/tasks")])
    return tmp_path / "root"


@pytest.mark.slow
@needs_package
@pytest.mark.parametrize("name", CLEAN)
def test_a_generator_becomes_a_task_that_keeps_its_contract(root: Path, tmp_path: Path, name: str) -> None:
    task_id = find_task(f"reasoning_gym:{name}", root)
    assert task_id.startswith(f"rg_{name.partition('?')[0]}-")
    check = TaskCheck(task_id, root, "mini", None, tmp_path / "checked")
    assert [each for each in check.run() if each.problem] == []


@pytest.mark.slow
@needs_package
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("countdown", "decide its own value"),
        ("coin_flip", "repeat themselves|earns"),
        ("nowhere", "'nowhere' not registered"),
        ("spell_backward?colour=7", "colour"),
        ("../x", "names no generator"),
    ],
)
def test_what_is_not_fit_for_grading_is_said(root: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_task(f"reasoning_gym:{name}", root)


@pytest.mark.slow
@needs_package
def test_no_item_is_in_two_parts_of_the_data(root: Path, tmp_path: Path) -> None:
    task_id = find_task("reasoning_gym:chain_sum", root)
    check = TaskCheck(task_id, root, "mini", None, tmp_path / "checked")
    preparer, parts = load_preparer(task_id), []
    for folder in (check.visible / "train.jsonl", check.hidden / "eval.jsonl"):
        parts.append({json.loads(line)["question"] for line in folder.read_text().splitlines()})
    for seed in ("a secret", f"a secret{TWINS}"):
        target = tmp_path / f"draw-{len(parts)}"
        target.mkdir()
        preparer.draw(seed, target)  # type: ignore[attr-defined]
        parts.append({json.loads(line)["question"] for line in (target / "eval.jsonl").read_text().splitlines()})
    assert [len(part) for part in parts] == [2000, 200, 200, 200]
    assert len(set.union(*parts)) == 2600


HOSTILE = {
    "write": "open('/tmp/a2rl-was-here', 'w').write('x')",
    "read the user's files": f"open({str(Path(__file__))!r}).read()",
    "connect": "__import__('socket').create_connection(('127.0.0.1', 22))",
    "start a program": "__import__('subprocess').run(['true'])",
    "allocate": "'x' * (1 << 40)",
    "exit": "__import__('os')._exit(0)",
    "print": "print('{\"value\": 1.0}') or 1 / 0",
    "hang": "[None for _ in iter(int, 1)]",
    "kill": "__import__('os').kill(__import__('os').getppid(), 9)",
    "see keys": "1 / len([name for name in __import__('os').environ if 'KEY' in name])",
    "see its parent's keys": "open(f'/proc/{__import__(\"os\").getppid()}/environ').read()",
    "read the project": f"__import__('os').listdir({str(REPOSITORY / 'baselines')!r})",
    "read another task's answers": f"open({str(REPOSITORY / 'baselines/mini/gsm8k/key.json')!r}).read()",
    "listen": "__import__('socket').socket().bind(('127.0.0.1', 0)) or True",
    "change what others get": "__import__('builtins').__dict__.update(float=lambda _: 9.0) or 1 / 0",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_scorer_fails_alone(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of the package, whose scorer does what an answer tells it."""
    package = tmp_path / "site"
    package.mkdir()
    (package / "reasoning_gym.py").write_text(
        "class Made:\n"
        "    def score_answer(self, answer, entry):\n"
        "        return float(answer == 'right' or bool(eval(answer)))\n"
        "def create_dataset(name, size, seed):\n"
        "    return Made()\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package} exec {Settings.load().python_bin}/python "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_TASKS_PYTHON", str(python))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    row = {"question": "?", "answer": "right", "entry": {"answer": "right"}}
    first, attacked, last = Generator("any", {}).rewards([(row, "right"), (row, HOSTILE[what]), (row, "right")])
    assert (first, last) == (1.0, 1.0)
    assert isinstance(attacked, TaskDefinitionError), what
    assert not Path("/tmp/a2rl-was-here").exists()
