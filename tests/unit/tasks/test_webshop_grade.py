"""Tests WebShop's grader: what the model reads, and what counts."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from a2rl.core.errors import UsageError
from a2rl.sampling import Message, Prompt
from a2rl.scoring.score import summarise
from a2rl.task_api.contract import Limits
from tasks.webshop import grade as grader
from tasks.webshop import mini
from tasks.webshop.shop import Expert, Goal, Session, Shop
from tasks.webshop.shop.transcript import Visit, read_action, transcript, window
from tests.fake_sampler import FakeSampler

LIMITS = Limits(max_new_tokens=32, max_steps=15)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hidden")
    world = mini.generate(400, 24, 5, "eval", folder / "catalogue")
    (folder / "goals.jsonl").write_text("".join(goal.to_json() + "\n" for goal in world.goals))
    (folder / "about.json").write_text('{"prompt": "whole"}')
    return folder


@pytest.fixture
def windowed(hidden: Path, tmp_path: Path) -> Path:
    """The same eval set, with the prompts of the full variant."""
    for name in ("catalogue", "goals.jsonl"):
        (tmp_path / name).symlink_to(hidden / name)
    (tmp_path / "about.json").write_text('{"prompt": "window"}')
    return tmp_path


class Customer:
    """A fake model that shops like the expert. It counts the prompts for each instruction to know its step."""

    def __init__(self, hidden: Path) -> None:
        shop = Shop(hidden / "catalogue")
        goals = map(Goal.from_json, (hidden / "goals.jsonl").read_text().splitlines())
        self.visits = {goal.instruction: (Session(shop, goal), Expert()) for goal in goals}

    def __call__(self, prompt: Prompt) -> str:
        session, expert = next(
            visit for text, visit in self.visits.items() if f"Instruction: {text}\n" in text_of(prompt)
        )
        action = expert.act(session.page)
        session.step(action)
        return f" {action}"


def text_of(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1].content


@pytest.mark.parametrize("form", ["whole", "window"])
def test_a_model_that_shops_as_the_expert_scores_100(hidden: Path, windowed: Path, form: str) -> None:
    folder = hidden if form == "whole" else windowed
    sampler = FakeSampler(Customer(folder))
    score = summarise(grader.grade(sampler, folder, grader.item_ids(folder), LIMITS, {}))
    assert (score.score, score.correct) == (100, 24)
    assert (score.measures["mean reward"], score.measures["perfect share"]) == (1, 1)
    assert score.measures["invalid share"] == 0
    assert 4 < score.measures["steps"] < 7
    assert all(group.score == 100 for group in score.groups.values())
    assert sampler.calls == [24], "all visits at once"
    assert sampler.params[0].stop == ("\n",)


def test_who_buys_nothing_within_the_limit_scores_0(hidden: Path) -> None:
    sampler = FakeSampler(lambda prompt: " think[what now?]")
    score = summarise(grader.grade(sampler, hidden, grader.item_ids(hidden), LIMITS, {}))
    assert (score.score, score.wrong) == (0, 24)
    assert score.measures == {"mean reward": 0, "perfect share": 0, "steps": 15, "invalid share": 1}


def test_completions_have_the_models_step_limit(hidden: Path) -> None:
    [each, *_] = grader.item_ids(hidden)
    gold = grader.gold_outputs(hidden)[each]
    for steps, verdict in ((len(gold.splitlines()), "correct"), (len(gold.splitlines()) - 1, "wrong")):
        late = "think[what now?]\n" * (LIMITS.max_steps - steps) + gold
        [item] = grader.score_outputs({each: late}, hidden, [each], LIMITS)
        assert (item.verdict, item.measures["steps"]) == (verdict, LIMITS.max_steps)


def test_a_purchase_worth_half_is_a_success_but_not_perfect(hidden: Path) -> None:
    [each, *_] = grader.item_ids(hidden)
    gold = grader.gold_outputs(hidden)[each].splitlines()
    options = Goal.from_json((hidden / "goals.jsonl").read_text(encoding="utf-8").splitlines()[0]).options
    assert isinstance(options, Mapping)
    without_options = [action for action in gold if action not in {f"click[{value}]" for value in options.values()}]
    [item] = grader.score_outputs({each: "\n".join(without_options)}, hidden, [each], LIMITS)
    reward = item.measures["mean reward"]
    assert 0.5 <= reward < 1
    assert (item.verdict, item.value, item.measures["perfect share"]) == ("correct", 1, 0)


def test_a_purchase_of_another_kind_of_thing_is_worth_nothing(hidden: Path) -> None:
    ids = grader.item_ids(hidden)
    gold = grader.gold_outputs(hidden)
    [item] = grader.score_outputs({ids[0]: gold[ids[1]]}, hidden, ids[:1], LIMITS)
    assert (item.verdict, item.measures["mean reward"]) == ("wrong", 0)


def test_the_whole_prompt_grows_by_what_was_done_and_shown(hidden: Path) -> None:
    sampler = FakeSampler(Customer(hidden))
    [each, *_] = grader.item_ids(hidden)
    grader.grade(sampler, hidden, [each], LIMITS, {})
    prompts = [text_of(prompt) for prompt in sampler.asked]
    assert prompts[0].startswith("Instruction: Find me ")
    assert prompts[0].endswith("\n[Search]\n>")
    for before, after in pairwise(prompts):
        assert after.startswith(before)
        assert after.endswith("\n>")
    assert prompts[-1].endswith("You have clicked " + prompts[-1].rpartition("clicked ")[2])


def test_the_window_shows_the_last_five_turns_and_the_actions(windowed: Path) -> None:
    shop = Shop(windowed / "catalogue")
    goal = Goal.from_json((windowed / "goals.jsonl").read_text().splitlines()[0])
    visit = Visit(shop, goal, "window")
    assert "  search[<your words>]\n  click[search]\n" in visit.prompt
    for number in range(6):
        visit.write(f" search[{goal.query} {number}]")
    visit.write(" click[Next >]")
    prompt = visit.prompt
    assert prompt.count("\nObservation ") == 6
    assert "Action 2:" not in prompt
    assert f"Action 3: search[{goal.query} 2]\n" in prompt
    assert prompt.endswith("\nAction 8:")
    assert "  click[back to search]\n  click[< prev]\n  click[next >]\n" in prompt
    # As in the reference, each action is followed by its result, so the newest page appears twice.
    assert prompt.count(visit.session.observation) == 2


def test_a_model_with_a_chat_template_gets_the_window_as_a_chat(windowed: Path) -> None:
    plain, chat = (FakeSampler(lambda prompt: "click[x]", chat=template) for template in (False, True))
    for sampler in (plain, chat):
        grader.grade(sampler, windowed, grader.item_ids(windowed)[:1], Limits(max_new_tokens=9, max_steps=1), {})
    [text], [messages] = plain.asked, chat.asked
    assert not isinstance(messages, str)
    assert [message.role for message in messages] == ["system", "user"]
    assert text == f"{messages[0].content}\n\n{messages[1].content}"
    assert isinstance(messages[0], Message)


def test_the_references_wording_is_kept_as_an_option(windowed: Path) -> None:
    sampler = FakeSampler(lambda prompt: f"search[{len(sampler.asked)}]", chat=True)
    limits = Limits(max_new_tokens=9, max_steps=7)
    grader.grade(sampler, windowed, grader.item_ids(windowed)[:1], limits, {"prompts": "faithful"})
    first, *_, last = sampler.asked
    assert not isinstance(first, str)
    assert not isinstance(last, str)
    assert first[0].content.startswith("You are a helpful shopping assistant")
    assert first[1].content.startswith("You are shopping on an e-commerce website.")
    assert "Available actions:\n  search[<your query>]\n  click[search]\n\nRules:\n" in first[1].content
    assert "Now it's your turn:\n\nObservation 1: " in first[1].content
    assert "Action 1:" not in last[1].content
    assert "Action 2: search[2]\n\nObservation 3: " in last[1].content
    assert last[1].content.endswith("\nAction 7:")


def test_a_prompt_that_outgrows_the_context_is_truncated(hidden: Path, windowed: Path) -> None:
    for folder in (hidden, windowed):
        sampler = FakeSampler(lambda prompt: " search[shirts]", context=900)
        [item] = grader.grade(sampler, folder, grader.item_ids(folder)[:1], LIMITS, {})
        assert (item.verdict, item.value) == ("truncated", 0)
        assert item.measures["steps"] < 15


def test_a_visit_that_breaks_down_is_errored_and_not_lost(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(visit: Visit, line: str) -> str:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Visit, "write", broken)
    [item] = grader.grade(FakeSampler(lambda prompt: ""), hidden, grader.item_ids(hidden)[:1], LIMITS, {})
    assert item.verdict == "errored"
    assert "the disk is gone" in item.reason


def test_data_that_names_no_prompt_is_refused(windowed: Path) -> None:
    (windowed / "about.json").write_text('{"prompt": "song"}')
    with pytest.raises(UsageError, match="prepare the data again"):
        grader.grade(FakeSampler(lambda prompt: ""), windowed, [], LIMITS, {})


@pytest.mark.parametrize(
    ("written", "action"),
    [
        (" click[x]", "click[x]"),
        ("Action: click[x]", "click[x]"),
        ("choose[x]", "click[x]"),
        ("Action: choose[x] ", "click[x]"),
        ("", ""),
        ("I will choose[x]", "I will choose[x]"),
    ],
)
def test_an_action_is_read_with_the_references_mercies(written: str, action: str) -> None:
    assert read_action(written) == action


def test_a_transcript_is_what_prompts_and_actions_come_to(hidden: Path) -> None:
    shop, [goal, *_] = Shop(hidden / "catalogue"), (hidden / "goals.jsonl").read_text().splitlines()
    visit, session, expert = (
        Visit(shop, Goal.from_json(goal), "whole"),
        Session(shop, Goal.from_json(goal), "brief"),
        Expert(),
    )
    first, turns, text = session.observation, [], visit.prompt
    while not session.done:
        action = expert.act(session.page)
        turns.append((action, session.step(action)))
        text += f" {action}\n" + visit.write(action)
    assert transcript(first, turns) == text
    assert window("buy", [], "page", session.available()).count("Observation") == 1
    assert json.loads(goal)["instruction"] in text
