"""Tests that the scripted agent trains with the very prompts that the grader asks, on every task, in both wordings.

The agent's training items are the grader's eval items here, so that both can be compared.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

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
        asked = [route.environment(name) for name in route.names]
        found = {"prompts": [each.prompt for each in asked]}
        if task in ("gsm8k", "humaneval"):
            examples = [route.example(name).parts for name in route.names]
            found["imitated"] = ["".join(part.text for part in each if part.learn) for each in examples]
            for environment, answer in zip(asked, found["imitated"]):
                environment.write(answer)
            found["rewards"] = [each.reward for each in asked]
        print(json.dumps(found), flush=True)
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


def share_problems(visible: Path, hidden: Path) -> None:
    """One of them has a number that the two rules of the grader read in different ways."""
    as_eval_items_jsonl("eval.jsonl")(visible, hidden)
    for file in (visible / "train.jsonl", hidden / "eval.jsonl"):
        first, *others = read_jsonl(file)
        write_jsonl(file, [{**first, "answer": "<<3*500=1500>>1,500 are left.\n#### 1,500"}, *others])


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
        kinds = repaired(games)
        examples = json.dumps({"repaired": kinds, "faithful": {kind: kinds[kind][::-1] for kind in kinds}})
        for folder in (visible, hidden):
            (folder / "prompts.json").write_text(examples)


SHARED: Mapping[str, Callable[[Path, Path], None]] = {
    "gsm8k": share_problems,
    "humaneval": as_eval_items_jsonl("eval.jsonl"),
    "alpacaeval": as_eval_items_jsonl("eval.jsonl"),
    "deepsearchqa": as_eval_items_jsonl("eval.jsonl"),
    "alfworld": share_games,
    "webshop": share_shop,
}

ONE_TURN = ("gsm8k", "humaneval")
QUICK = ("gsm8k", "alfworld")
"""A task with one turn, and one with many."""


class Case(NamedTuple):
    """What is tested: a task, without or with examples, as text or as a chat, in one of the grader's wordings."""

    task: str
    examples: bool
    chat: bool
    wording: str


Folders = Mapping[tuple[str, bool], Path]


def graded(
    case: Case, folders: Folders, repository: Path, answer: Callable[[Prompt], str] = lambda _: ""
) -> dict[str, Any]:
    """Returns what became of each item, by its first prompt."""
    sampler = FakeSampler(answer, chat=case.chat)
    grader: Any = load_grader(case.task)
    definition, hidden = load_task(case.task, repository), folders[case.task, case.examples] / "hidden"
    asked = definition.choose({"prompts": case.wording} if "prompts" in definition.options else {})
    limits = definition.variant("mini").limits
    unasked = SimpleNamespace(annotator="", failures_allowed=0, put=lambda *_: None)
    asking = [unasked] if definition.judged or case.task == "deepsearchqa" else []
    found = {}
    for item in grader.item_ids(hidden):
        sampler.asked.clear()
        results = grader.grade(sampler, hidden, [item], limits, asked, *asking)
        found[as_json(sampler.asked[0])] = results
    return found


def as_json(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return json.dumps(prompt)
    return json.dumps([{"role": each.role, "content": each.content} for each in prompt if isinstance(each, Message)])


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest) -> list[Case]:
    tests: list[Any] = [each for each in request.session.items if each.path == request.path]
    return list(dict.fromkeys(each.callspec.params["case"] for each in tests))


@pytest.fixture(scope="module")
def folders(cases: Sequence[Case], tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The data of each task, without and with examples."""
    found: dict[tuple[str, bool], Path] = {}
    for task in {case.task for case in cases}:
        plain, shown = (tmp_path_factory.mktemp(task) / name for name in ("plain", "shown"))
        visible, hidden = prepare_mini(task, plain)
        SHARED[task](visible, hidden)
        shutil.copytree(plain, shown)
        show_examples(shown / "visible", shown / "hidden")
        found |= {(task, False): plain, (task, True): shown}
    return found


@pytest.fixture(scope="module")
def trained(cases: Sequence[Case], folders: Folders, repository: Path) -> dict[Case, dict[str, list[Any]]]:
    """The prompts of the scripted agent in each case, and its answers, which one process makes."""
    settings = [
        (case.task, str(folders[case.task, case.examples] / "visible"), case.chat, meta_of(case, repository))
        for case in cases
    ]
    command = [sys.executable, "-c", AGENT, str(repository / "agents" / "scripted"), json.dumps(settings)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return dict(zip(cases, map(json.loads, ended.stdout.splitlines()), strict=True))


def meta_of(case: Case, repository: Path) -> dict[str, object]:
    limits = load_task(case.task, repository).variant("mini").limits
    return {
        "seed": 0,
        "variant": "mini",
        "max_new_tokens": limits.max_new_tokens,
        "max_steps": limits.max_steps,
        "chat_template_kwargs": {},
        "options": {"prompts": case.wording},
    }


WAYS = {
    "without examples, text": (False, False, "repaired"),
    "with examples, text": (True, False, "repaired"),
    "without examples, chat": (False, True, "repaired"),
    "with examples, chat": (True, True, "repaired"),
    "with the reference's, text": (True, False, "faithful"),
    "with the reference's, chat": (True, True, "faithful"),
}
QUICK_WAYS = ("without examples, text", "with examples, chat", "with the reference's, text")


def each_case(tasks: Iterable[str], quick: Iterable[str]) -> pytest.MarkDecorator:
    """Tests all ways of asking; heavy are those of other tasks than the quick ones, and three of the ways."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                Case(task, *asked),
                id=f"{task}, {way}",
                marks=() if task in quick and way in QUICK_WAYS else pytest.mark.heavy,
            )
            for task in tasks
            for way, asked in WAYS.items()
        ],
    )


@each_case(SHARED, QUICK)
def test_the_agent_trains_with_the_graders_prompts(
    case: Case, folders: Folders, trained: Mapping[Case, dict[str, list[Any]]], repository: Path
) -> None:
    assert set(map(json.dumps, trained[case]["prompts"])) == set(graded(case, folders, repository))


@each_case(ONE_TURN, ONE_TURN)
def test_what_the_agent_imitates_is_right_for_both(
    case: Case, folders: Folders, trained: Mapping[Case, dict[str, list[Any]]], repository: Path
) -> None:
    """For the agent's own reward, and for the grader."""
    found = trained[case]
    answers = dict(zip(map(json.dumps, found["prompts"]), found["imitated"], strict=True))
    results = graded(case, folders, repository, lambda prompt: answers[as_json(prompt)])
    assert set(found["rewards"]) == {1.0}
    assert {result.verdict for items in results.values() for result in items} == {"correct"}
