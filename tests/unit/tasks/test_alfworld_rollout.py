"""Tests the rollouts that the agent gets for online RL: their tokens, masks and probabilities are exact."""

from pathlib import Path

import pytest

from a2rl.handout import hand_out
from tasks.alfworld import mini
from tasks.alfworld.prepare import HERE
from tests.rollout_script import all_is_well
from tests.small_model import build_base_model

SCRIPT = """
import time
data, model, tokenizer = data_and_model()
from alfred import Game, Play
from alfred.transcript import GameEnvironment, opening
from episodes import for_trl, play

games = [Game.load(path) for path in sorted((data / "train").rglob("game.tw-pddl"))]
settings = {"max_steps": 4, "max_new_tokens": 5, "temperature": 1.0}
def play_games(games, **settings):
    return play(model, tokenizer, [GameEnvironment(game) for game in games], **settings)
episodes = checked(lambda: play_games(games * 2, **settings), model, 4 * 5)
for episode in episodes:
    game = Play(episode.environment.game)
    text = opening(game.intro)
    assert tokenizer.decode(episode.prompt) == text
    assert [game.step(command) for command in episode.turns].count("Nothing happens.") == episode.invalid
assert episodes != play_games(games * 2, **settings, seed=3)
late = play_games(games, until=time.monotonic())
assert all(episode.cut and not episode.turns for episode in late) and not any(episode.cut for episode in episodes)
stuck = play_games(games, max_steps=30, max_invalid=2)
assert all(episode.invalid <= 2 and (episode.reward or len(episode.turns) <= 30) for episode in stuck)

class Beginning:  # a tokenizer that begins each text with a token of its own, as that of Llama does
    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [tokenizer.eos_token_id] * add_special_tokens + tokenizer(text)["input_ids"]}
    def __getattr__(self, name):
        return getattr(tokenizer, name)
[episode] = play(model, Beginning(), [GameEnvironment(games[0])], **settings)
assert episode.prompt[0] == tokenizer.eos_token_id
answers = [token for token, written in zip(episode.tokens, episode.written) if not written]
assert answers and tokenizer.eos_token_id not in answers, "an answer is no beginning of a text"

trains = trainer(model, tokenizer)
named = {game.path.parent.name: game for game in games}
settings |= {"environment": lambda name: GameEnvironment(named[name])}
settings |= {"more": {"states": lambda episode: episode.environment.states}}
output = for_trl(**settings)([*named] * 2, trains)
check_columns(output, 2 * len(games))
for game, states, mask in zip(games * 2, output["states"], output["env_mask"]):
    assert states[0] == Play(game).state
    assert len(states) == sum(now > before for before, now in zip([0, *mask], mask)), "one for each turn"
shared = for_trl(**settings, processes=2)([*named] * 2, trains)
assert shared["prompt_ids"] == output["prompt_ids"]
check_columns(shared, 2 * len(games))
trains.accelerator.process_index = 1
elsewhere = for_trl(**settings)([*named] * 2, trains)
assert elsewhere["completion_ids"] != output["completion_ids"], "each of several GPUs has episodes of its own"
end()
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number, household in enumerate(mini.generate(6, 1, "train")):
        mini.write(household, tmp_path / "data" / "train" / str(number))
    hand_out(tmp_path / "data", HERE / "alfred")
    return tmp_path / "data"


@pytest.mark.heavy
def test_a_rollout_has_texts_probabilities_and_the_games_answers(data: Path, tmp_path: Path) -> None:
    all_is_well(SCRIPT, data, build_base_model(tmp_path / "model"), cwd=tmp_path)
