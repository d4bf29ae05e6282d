"""Tests that the scripted agent trains with the very prompts that the grader asks, on every task.

The agent's training items are the grader's eval items here, so that both can be compared.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2rl.core.files import read_jsonl, write_jsonl
from a2rl.sampling import Message, Prompt
from a2rl.task_api.catalog import load_grader, load_task
from tasks.alfworld.prompts import repaired
from tests.fake_sampler import FakeSampler
from tests.mini_data import prepare_mini

ITEMS = 6
AGENT = """
import json, os, sys, torch, traceback
from pathlib import Path
from types import SimpleNamespace
from transformers import AttentionInterface
from transformers.cache_utils import Cache
sys.path.insert(0, sys.argv[1])
from routes import Setting, load_route
for task, data, chat, meta in json.loads(sys.argv[2]):
    if child := os.fork():  # each task has its own module `prompts`
        assert os.waitpid(child, 0)[1] == 0
        continue
    try:
        setting = Setting(Path(data), SimpleNamespace(chat_template="x" if chat else None), 100_000, meta, small=False)
        setting.room_after = lambda prompt: 100_000 - len(str(prompt))
        route = load_route(task, setting)
        print(json.dumps([route.environment(name).prompt for name in route.names]), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
"""
"""It loads what the routes import once, and a child ends without taking that down, because both take seconds."""


def as_eval_items_jsonl(name: str) -> Callable[[Path, Path], None]:
    def share(visible: Path, hidden: Path) -> None:
        more = {"input": "", "output": ""} if name == "eval.jsonl" else {}
        rows = [{**more, **row} for row in read_jsonl(hidden / name)[:ITEMS]]
        write_jsonl(hidden / name, rows)
        write_jsonl(visible / ("goals.jsonl" if name == "goals.jsonl" else "train.jsonl"), rows)

    return share


def share_games(visible: Path, hidden: Path) -> None:
    for number, game in enumerate(sorted((hidden / "games").iterdir())):
        if number >= ITEMS:
            shutil.rmtree(game)
    shutil.rmtree(visible / "train")
    shutil.copytree(hidden / "games", visible / "train")


def share_shop(visible: Path, hidden: Path) -> None:
    as_eval_items_jsonl("goals.jsonl")(visible, hidden)
    shutil.rmtree(visible / "catalogue")
    shutil.copytree(hidden / "catalogue", visible / "catalogue")


def show_examples(visible: Path, hidden: Path) -> None:
    """Gives both sides examples, as the full variant has them."""
    if (hidden / "shots.jsonl").exists():
        for folder in (visible, hidden):
            write_jsonl(folder / "shots.jsonl", [{"question": f"{n}?", "answer": f"<<{n}>>#### {n}"} for n in range(4)])
    if (visible / "train").exists():
        from tasks.alfworld.alfred import Game

        games = (Game.load(path) for path in sorted((visible / "train").rglob("*.tw-pddl")))
        examples = json.dumps({"repaired": repaired(games)})
        for folder in (visible, hidden):
            (folder / "prompts.json").write_text(examples)


SHARED: Mapping[str, Callable[[Path, Path], None]] = {
    "gsm8k": as_eval_items_jsonl("eval.jsonl"),
    "humaneval": as_eval_items_jsonl("eval.jsonl"),
    "alpacaeval": as_eval_items_jsonl("eval.jsonl"),
    "deepsearchqa": as_eval_items_jsonl("eval.jsonl"),
    "alfworld": share_games,
    "webshop": share_shop,
}

QUICK = ("gsm8k", "alfworld")
"""A task with one turn, and one with many."""


def graders_prompts(task: str, hidden: Path, repository: Path, chat: bool) -> set[str]:
    """Returns the first prompt of each item."""
    first: dict[str, None] = {}
    sampler = FakeSampler(lambda _: "", chat=chat)
    grader: Any = load_grader(task)
    definition = load_task(task, repository)
    ids, options = grader.item_ids(hidden), definition.choose({})
    unasked = SimpleNamespace(annotator="", failures_allowed=0, put=lambda *_: None)
    asking = [unasked] if definition.judged or task == "deepsearchqa" else []
    for item in ids:
        sampler.asked.clear()
        grader.grade(sampler, hidden, [item], definition.variant("mini").limits, options, *asking)
        first[as_json(sampler.asked[0])] = None
    return set(first)


def as_json(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return json.dumps(prompt)
    return json.dumps([{"role": each.role, "content": each.content} for each in prompt if isinstance(each, Message)])


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest) -> list[tuple[str, bool, bool]]:
    """What is tested: a task, without or with examples, as text or as a chat."""
    tests: list[Any] = [each for each in request.session.items if each.path == request.path]
    given = [each.callspec.params for each in tests]
    return [(each["task"], each["examples"], each["chat"]) for each in given]


@pytest.fixture(scope="module")
def folders(
    cases: Sequence[tuple[str, bool, bool]], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, bool], Path]:
    """The data of each task, without and with examples."""
    found: dict[tuple[str, bool], Path] = {}
    for task in {task for task, _, _ in cases}:
        plain, shown = (tmp_path_factory.mktemp(task) / name for name in ("plain", "shown"))
        visible, hidden = prepare_mini(task, plain)
        SHARED[task](visible, hidden)
        shutil.copytree(plain, shown)
        show_examples(shown / "visible", shown / "hidden")
        found |= {(task, False): plain, (task, True): shown}
    return found


@pytest.fixture(scope="module")
def trained(
    cases: Sequence[tuple[str, bool, bool]], folders: Mapping[tuple[str, bool], Path], repository: Path
) -> dict[tuple[str, bool, bool], set[str]]:
    """The prompts of the scripted agent in each case, which one process makes."""
    settings = [
        (task, str(folders[task, examples] / "visible"), chat, meta_of(task, repository))
        for task, examples, chat in cases
    ]
    command = [sys.executable, "-c", AGENT, str(repository / "agents" / "scripted"), json.dumps(settings)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    answers = [{json.dumps(prompt) for prompt in json.loads(line)} for line in ended.stdout.splitlines()]
    return dict(zip(cases, answers, strict=True))


def meta_of(task: str, repository: Path) -> dict[str, object]:
    limits = load_task(task, repository).variant("mini").limits
    return {
        "seed": 0,
        "variant": "mini",
        "max_new_tokens": limits.max_new_tokens,
        "max_steps": limits.max_steps,
        "chat_template_kwargs": {},
        "options": {"prompts": "repaired"},
    }


@pytest.mark.parametrize(
    ("examples", "chat"),
    [
        pytest.param(False, False, id="without examples, text"),
        pytest.param(True, False, id="with examples, text", marks=pytest.mark.heavy),
        pytest.param(False, True, id="without examples, chat", marks=pytest.mark.heavy),
        pytest.param(True, True, id="with examples, chat"),
    ],
)
@pytest.mark.parametrize(
    "task", [task if task in QUICK else pytest.param(task, marks=pytest.mark.heavy) for task in SHARED]
)
def test_the_agent_trains_with_the_graders_prompts(
    task: str,
    examples: bool,
    chat: bool,
    folders: Mapping[tuple[str, bool], Path],
    trained: Mapping[tuple[str, bool, bool], set[str]],
    repository: Path,
) -> None:
    hidden = folders[task, examples] / "hidden"
    assert trained[task, examples, chat] == graders_prompts(task, hidden, repository, chat)
