"""Tests the rollouts that the agent gets for online RL: their tokens, masks and probabilities are exact."""

import subprocess
import sys
from pathlib import Path

import pytest

from a2rl.handout import hand_out
from tasks.alfworld import mini
from tasks.alfworld.prepare import HERE
from tests.small_model import build_base_model

SCRIPT = """
import sys
import time
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
data, model_path = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(data))
from alfred import Game, Play
from alfred.transcript import GameEnvironment, opening
from episodes import for_trl, play

torch.set_num_threads(1)
model, tokenizer = AutoModelForCausalLM.from_pretrained(model_path), AutoTokenizer.from_pretrained(model_path)
games = [Game.load(path) for path in sorted((data / "train").rglob("game.tw-pddl"))]
settings = {"max_steps": 4, "max_new_tokens": 5, "temperature": 1.0}
def play_games(games, **settings):
    return play(model, tokenizer, [GameEnvironment(game) for game in games], **settings)
episodes = play_games(games * 2, **settings)
assert len({tuple(episode.tokens) for episode in episodes}) == len(episodes), "each episode draws for itself"
for episode in episodes:
    game = Play(episode.environment.game)
    text = opening(game.intro)
    assert tokenizer.decode(episode.prompt) == text
    assert len(episode.tokens) == len(episode.logprobs) == len(episode.written)
    assert 0 < sum(episode.written) <= 4 * 5
    assert [game.step(command) for command in episode.turns].count("Nothing happens.") == episode.invalid
    logits = model(torch.tensor([episode.prompt + episode.tokens])).logits[0, len(episode.prompt) - 1 : -1]
    own = logits.log_softmax(-1).gather(-1, torch.tensor(episode.tokens)[:, None]).squeeze(-1)
    written = torch.tensor(episode.written, dtype=torch.bool)
    assert torch.allclose(own[written], torch.tensor(episode.logprobs)[written], atol=1e-4)
    assert not torch.tensor(episode.logprobs)[~written].any()
once, again = (play_games(games, **settings, seed=3) for _ in range(2))
assert once == again
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

class Trainer:
    class state: global_step = 7
    class accelerator: unwrap_model, process_index = staticmethod(lambda model: model), 0
    processing_class = tokenizer
Trainer.model = model
named = {game.path.parent.name: game for game in games}
settings |= {"environment": lambda name: GameEnvironment(named[name])}
settings |= {"more": {"states": lambda episode: episode.environment.states}}
output = for_trl(**settings)([*named] * 2, Trainer)
assert {"prompt_ids", "completion_ids", "logprobs", "env_mask", "reward"} <= output.keys()
for game, states, mask in zip(games * 2, output["states"], output["env_mask"]):
    assert states[0] == Play(game).state
    assert len(states) == sum(now > before for before, now in zip([0, *mask], mask)), "one for each turn"
assert {len(rows) for rows in output.values()} == {2 * len(games)}
shared = for_trl(**settings, processes=2)([*named] * 2, Trainer)
assert shared["prompt_ids"] == output["prompt_ids"]
assert {len(rows) for rows in shared.values()} == {2 * len(games)}
Trainer.accelerator.process_index = 1
elsewhere = for_trl(**settings)([*named] * 2, Trainer)
assert elsewhere["completion_ids"] != output["completion_ids"], "each of several GPUs has episodes of its own"
assert not {name.partition(".")[0] for name in sys.modules} & {"a2rl", "tasks"}, "it needs nothing of this project"
print("all is well")
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number, household in enumerate(mini.generate(6, 1, "train")):
        mini.write(household, tmp_path / "data" / "train" / str(number))
    hand_out(tmp_path / "data", HERE / "alfred")
    return tmp_path / "data"


@pytest.mark.heavy
def test_a_rollout_has_texts_probabilities_and_the_games_answers(data: Path, tmp_path: Path) -> None:
    model = build_base_model(tmp_path / "model")
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(data), str(model)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ended.stdout.strip() == "all is well", ended.stderr
