"""Tests the rollouts that the agent gets for online RL: their tokens, masks and probabilities are exact."""

from pathlib import Path

import pytest

from a2rl.handout import hand_out
from tasks.webshop import mini
from tasks.webshop.prepare import HERE
from tests.rollout_script import all_is_well
from tests.small_model import build_base_model

SCRIPT = """
data, model, tokenizer = data_and_model()
from episodes import for_trl, play
from shop import Shop, read_goals
from shop.transcript import Visit

shop, train = Shop(data / "catalogue"), read_goals(data / "goals.jsonl")
settings = {"max_steps": 4, "max_new_tokens": 5, "temperature": 1.0}
def play_goals(goals, **settings):
    return play(model, tokenizer, [Visit(shop, goal, "whole") for goal in goals], **settings)
episodes = checked(lambda: play_goals(train * 2, **settings), model, 4 * 5)
for episode, goal in zip(episodes, train * 2):
    visit = Visit(shop, goal, "whole")
    assert tokenizer.decode(episode.prompt) == visit.prompt
    for line in episode.turns:
        visit.write(line)
    assert (visit.invalid, visit.reward) == (episode.invalid, episode.reward)
stuck = play_goals(train, max_steps=30, max_invalid=2)
assert all(episode.invalid <= 2 for episode in stuck)
goals = {goal.id: goal for goal in train}
output = for_trl(lambda name: Visit(shop, goals[name], "whole"), **settings)([*goals] * 2, trainer(model, tokenizer))
check_columns(output, 2 * len(train))
end()
"""
ROUTE = """
sys.path.insert(0, sys.argv[2])
from routes import Setting, load_route
def route_of(variant, template=None, prompts="repaired"):
    meta = {"seed": 0, "variant": variant, "max_steps": 15, "options": {"prompts": prompts}}
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
faithful = route_of("full", template="a template", prompts="faithful")
system, asked = faithful.example(faithful.names[0]).prompt
assert system["content"].startswith("You are a helpful") and asked["content"].startswith("You are shopping on")
end()
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    world = mini.generate(400, 24, 1, "train", tmp_path / "data" / "catalogue")
    (tmp_path / "data" / "goals.jsonl").write_text("".join(goal.to_json() + "\n" for goal in world.goals))
    hand_out(tmp_path / "data", HERE / "shop")
    return tmp_path / "data"


@pytest.mark.heavy
def test_a_rollout_has_texts_probabilities_and_the_shops_answers(data: Path, tmp_path: Path) -> None:
    all_is_well(SCRIPT, data, build_base_model(tmp_path / "model"), cwd=tmp_path)


def test_the_scripted_agent_learns_only_from_good_visits(data: Path, tmp_path: Path, repository: Path) -> None:
    """It does not learn from the expert's mistakes."""
    all_is_well(ROUTE, data, repository / "agents" / "scripted", cwd=tmp_path)
