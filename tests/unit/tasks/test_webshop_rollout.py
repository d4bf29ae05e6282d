"""Tests the rollouts that the agent gets for online RL: their tokens, masks and probabilities are exact."""

import subprocess
import sys
from pathlib import Path

import pytest

from a2rl.handout import hand_out
from tasks.webshop import mini
from tasks.webshop.prepare import HERE
from tests.small_model import build_base_model

SCRIPT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
data, model_path = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(data))
from episodes import for_trl, play
from shop import Shop, read_goals
from shop.transcript import Visit

torch.set_num_threads(1)
model, tokenizer = AutoModelForCausalLM.from_pretrained(model_path), AutoTokenizer.from_pretrained(model_path)
shop, train = Shop(data / "catalogue"), read_goals(data / "goals.jsonl")
settings = {"max_steps": 4, "max_new_tokens": 5, "temperature": 1.0}
def play_goals(goals, **settings):
    return play(model, tokenizer, [Visit(shop, goal, "whole") for goal in goals], **settings)
episodes = play_goals(train * 2, **settings)
assert len({tuple(episode.tokens) for episode in episodes}) == len(episodes), "each episode draws for itself"
for episode, goal in zip(episodes, train * 2):
    visit = Visit(shop, goal, "whole")
    assert tokenizer.decode(episode.prompt) == visit.prompt
    assert len(episode.tokens) == len(episode.logprobs) == len(episode.written)
    assert 0 < sum(episode.written) <= 4 * 5
    for line in episode.turns:
        visit.write(line)
    assert (visit.invalid, visit.reward) == (episode.invalid, episode.reward)
    logits = model(torch.tensor([episode.prompt + episode.tokens])).logits[0, len(episode.prompt) - 1 : -1]
    own = logits.log_softmax(-1).gather(-1, torch.tensor(episode.tokens)[:, None]).squeeze(-1)
    written = torch.tensor(episode.written, dtype=torch.bool)
    assert torch.allclose(own[written], torch.tensor(episode.logprobs)[written], atol=1e-4)
    assert not torch.tensor(episode.logprobs)[~written].any()
once, again = (play_goals(train, **settings, seed=3) for _ in range(2))
assert once == again
stuck = play_goals(train, max_steps=30, max_invalid=2)
assert all(episode.invalid <= 2 for episode in stuck)

class Trainer:
    class state: global_step = 7
    class accelerator: unwrap_model, process_index = staticmethod(lambda model: model), 0
    processing_class = tokenizer
Trainer.model = model
goals = {goal.id: goal for goal in train}
output = for_trl(lambda name: Visit(shop, goals[name], "whole"), **settings)([*goals] * 2, Trainer)
assert {"prompt_ids", "completion_ids", "logprobs", "env_mask", "reward"} <= output.keys()
assert {len(rows) for rows in output.values()} == {2 * len(train)}
assert not {name.partition(".")[0] for name in sys.modules} & {"a2rl", "tasks"}, "it needs nothing of this project"
print("all is well")
"""
ROUTE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from types import SimpleNamespace
from routes import Setting, load_route
def route_of(variant, template=None):
    meta = {"seed": 0, "variant": variant, "max_steps": 15}
    return load_route("webshop", Setting(Path(sys.argv[1]), SimpleNamespace(chat_template=template), 4096, meta, True))
route = route_of("mini")
examples = [example for name in route.names if (example := route.example(name))]
assert len(examples) >= 0.8 * len(route.names)
for example in examples:
    assert example.prompt.startswith("Instruction: Find me ") and example.parts[-1].text == ""
    learned = [part.text for part in example.parts if part.learn]
    assert learned[-1] == " click[Buy Now]\\n"
    assert all(text.startswith((" search[", " click[")) and text.endswith("]\\n") for text in learned)
    # What is done is either learned or a mistake; what the shop answers is never learned.
    assert not any(part.learn for part in example.parts[1::2])
assert any(not part.learn for example in examples for part in example.parts[::2])
assert route.can_play
assert {example.prompt for example in examples} <= {route.environment(name).prompt for name in route.names}

window = route_of("full", template="a template")
turns = [example for name in window.names if (example := window.example(name))]
assert not window.can_play and {len(example.parts) for example in turns} == {1}
assert all([message["role"] for message in example.prompt] == ["system", "user"] for example in turns)
print("all is well")
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    world = mini.generate(400, 24, 1, "train", tmp_path / "data" / "catalogue")
    (tmp_path / "data" / "goals.jsonl").write_text("".join(goal.to_json() + "\n" for goal in world.goals))
    hand_out(tmp_path / "data", HERE / "shop")
    return tmp_path / "data"


def run(folder: Path, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.heavy
def test_a_rollout_has_texts_probabilities_and_the_shops_answers(data: Path, tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, data, build_base_model(tmp_path / "model"))
    assert ended.stdout.strip() == "all is well", ended.stderr


def test_the_scripted_agent_learns_only_from_good_visits(data: Path, tmp_path: Path, repository: Path) -> None:
    """It does not learn from the expert's mistakes."""
    ended = run(tmp_path, ROUTE, data, repository / "agents" / "scripted")
    assert ended.stdout.strip() == "all is well", ended.stderr
