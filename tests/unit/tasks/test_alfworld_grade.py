"""Tests ALFWorld's grader: what the model reads, what counts, and the examples before a game."""

import json
from pathlib import Path

import pytest

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.sampling import Prompt
from a2rl.scoring.score import summarise
from a2rl.task_api.contract import Limits
from tasks.alfworld import grade as grader
from tasks.alfworld import mini
from tasks.alfworld.alfred import Expert, Game, Play
from tasks.alfworld.alfred.problem import KINDS
from tasks.alfworld.alfred.transcript import GameEnvironment, framed, opening
from tasks.alfworld.prompts import faithful, repaired
from tests.fake_sampler import FakeSampler

LIMITS = Limits(max_new_tokens=24, max_steps=30)
OPTIONS = {"prompts": "repaired"}


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hidden")
    for number, household in enumerate(mini.generate(12, 5, "eval")):
        mini.write(household, folder / "games" / f"{household.kind}-{number}")
    (folder / "prompts.json").write_text('{"repaired": {}, "faithful": {}}')
    return folder


class Player:
    """A fake model that plays like the expert. It identifies a game by the prompt."""

    def __init__(self, hidden: Path) -> None:
        self.games = {}
        for item_id in grader.item_ids(hidden):
            game = Game.load(hidden / "games" / item_id / "game.tw-pddl")
            self.games[opening(Play(game).intro)] = game

    def __call__(self, prompt: Prompt) -> str:
        assert isinstance(prompt, str)
        start = next(text for text in self.games if text in prompt)
        play, expert = Play(self.games[start]), Expert()
        command = expert.act(play.intro, play.admissible())
        for line in prompt.partition(start)[2].split("\n>")[:-1]:
            assert line.splitlines()[0] == f" {command}"
            observation = play.step(command)
            command = expert.act(observation, play.admissible())
        return f" {command}"


def test_a_model_that_plays_as_the_expert_wins_every_game(hidden: Path) -> None:
    items = grader.grade(FakeSampler(Player(hidden)), hidden, grader.item_ids(hidden), LIMITS, OPTIONS)
    score = summarise(items)
    assert score.score == 100
    assert score.measures["invalid share"] == 0
    assert 3 < score.measures["steps"] < 15
    assert len(score.groups) == 6
    assert all(group.score == 100 for group in score.groups.values())


def test_a_stuck_model_loses_every_game_at_the_step_limit(hidden: Path) -> None:
    sampler = FakeSampler(lambda prompt: " go to the moon")
    score = summarise(grader.grade(sampler, hidden, grader.item_ids(hidden), LIMITS, OPTIONS))
    assert (score.score, score.wrong) == (0, score.total)
    assert score.measures == {"steps": 30, "invalid share": 1}
    assert sampler.params[0].stop == ("\n",)


def test_completions_have_the_models_step_limit(hidden: Path) -> None:
    [each, *_] = grader.item_ids(hidden)
    gold = grader.gold_outputs(hidden)[each]
    for steps, verdict in ((len(gold.splitlines()), "correct"), (len(gold.splitlines()) - 1, "wrong")):
        late = "look\n" * (LIMITS.max_steps - steps) + gold
        [item] = grader.score_outputs({each: late}, hidden, [each], LIMITS)
        assert (item.verdict, item.measures["steps"]) == (verdict, LIMITS.max_steps)


def test_a_thought_is_answered_ok_and_is_a_valid_step(hidden: Path) -> None:
    sampler = FakeSampler(lambda prompt: " think: where am I?")
    [item] = grader.grade(sampler, hidden, grader.item_ids(hidden)[:1], Limits(max_new_tokens=9, max_steps=3), OPTIONS)
    assert item.measures == {"steps": 3, "invalid share": 0}
    assert str(sampler.asked[-1]).endswith("> think: where am I?\nOK.\n> think: where am I?\nOK.\n>")


def test_a_game_for_training_answers_as_the_grader_does(hidden: Path) -> None:
    game = GameEnvironment(Game.load(hidden / "games" / grader.item_ids(hidden)[0] / "game.tw-pddl"))
    assert (game.write("Think: where am I?"), game.write(" fly"), game.invalid) == ("OK.\n>", "Nothing happens.\n>", 1)
    assert game.commands == ["think: where am I?", "fly"]


def test_the_prompt_is_the_intro_without_its_welcome(hidden: Path) -> None:
    sampler = FakeSampler(lambda prompt: " look")
    grader.grade(sampler, hidden, grader.item_ids(hidden)[:1], LIMITS, OPTIONS)
    first = str(sampler.asked[0])
    assert first.startswith("You are in the middle of a room.")
    assert first.endswith("\n>")
    assert "Your task is to: " in first.splitlines()[1]


def test_a_game_that_outgrows_the_context_is_truncated(hidden: Path) -> None:
    sampler = FakeSampler(lambda prompt: " look", context=700)
    [item] = grader.grade(sampler, hidden, grader.item_ids(hidden)[:1], LIMITS, OPTIONS)
    assert item.verdict == "truncated"
    assert item.measures["steps"] < 30


def test_a_game_that_breaks_down_is_errored_and_not_lost(hidden: Path, tmp_path: Path) -> None:
    broken = tmp_path / "games" / "broken"
    broken.mkdir(parents=True)
    (broken / "game.tw-pddl").write_text("{}")
    (tmp_path / "prompts.json").write_text('{"repaired": {}}')
    [item] = grader.grade(FakeSampler(lambda prompt: ""), tmp_path, ["broken"], LIMITS, OPTIONS)
    assert item.verdict == "errored"
    assert "the game failed" in item.reason


def test_examples_precede_the_game_as_far_as_the_context_allows(hidden: Path, tmp_path: Path) -> None:
    """They have the reference's frame."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "games").symlink_to(hidden / "games")
    games = [Game.parse(mini.game(household), Path("game")) for household in mini.generate(60, 6, "train")]
    examples = repaired(games)
    (folder / "prompts.json").write_text(json.dumps({"repaired": examples}))
    ids = grader.item_ids(folder)
    shown = []
    for context in (100_000, 4_000, 2_000):
        sampler = FakeSampler(lambda prompt: " look", context=context)
        grader.grade(sampler, folder, ids[:2], LIMITS, OPTIONS)
        shown.append(str(sampler.asked[0]).count("Your task is to: ") - 1)
    assert shown == [2, 1, 0]


def test_without_prompts_a_game_comes_without_examples(hidden: Path, tmp_path: Path) -> None:
    (tmp_path / "games").symlink_to(hidden / "games")
    (tmp_path / "prompts.json").write_text(json.dumps({"repaired": {kind: ["Shown.\n"] * 2 for kind in KINDS}}))
    sampler = FakeSampler(lambda prompt: " look")
    for prompts, shown in (("repaired", True), ("none", False)):
        grader.grade(sampler, tmp_path, grader.item_ids(hidden)[:1], LIMITS, {"prompts": prompts})
        assert ("Shown." in str(sampler.asked[-1])) is shown


def test_our_examples_are_two_won_games_of_each_kind() -> None:
    games = [Game.parse(mini.game(household), Path("game")) for household in mini.generate(60, 6, "train")]
    examples = repaired(games)
    assert {kind: len(texts) for kind, texts in examples.items()} == dict.fromkeys({game.kind for game in games}, 2)
    for texts in examples.values():
        for text in texts:
            assert "> think: I need to find and take a" in text
            assert "Nothing happens." not in text
            assert " put " not in "".join(line for line in text.splitlines() if line.startswith("> put"))
    assert framed([]) == ""


def test_published_examples_come_from_a_mirror_by_digest_only(tmp_path: Path) -> None:
    assert faithful(tmp_path) is None
    (tmp_path / "react_prompts.json").write_text("{}")
    with pytest.raises(IntegrityError, match="not the published file"):
        faithful(tmp_path)


def test_asking_for_prompts_that_the_data_lacks_is_a_usage_error(hidden: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text('{"repaired": {}}')
    with pytest.raises(UsageError, match="no faithful prompts"):
        grader.grade(FakeSampler(lambda prompt: ""), tmp_path, [], LIMITS, {"prompts": "faithful"})
