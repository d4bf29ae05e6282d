"""Tests what the scripted agent adds to TRL: cheaper passes with the same gradient, and a selection of games."""

import subprocess
import sys
from pathlib import Path

from tests.small_model import build_base_model

SETTING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from agent import load
from cpu_speed import FastGRPOTrainer, FastSFTTrainer, drop_rows_without_advantage
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

torch.set_num_threads(1)
model, tokenizer = load(Path(sys.argv[2]))
settings = {"output_dir": "trainer", "report_to": [], "use_cpu": True, "bf16": False}

def right_padded(*lengths):
    return torch.tensor([[1] * length + [0] * (max(lengths) - length) for length in lengths])

def gradient(trainer, batches):
    trainer.current_gradient_accumulation_steps = 1
    shapes = []
    note = lambda module, args, inputs, output: shapes.append(tuple(inputs["input_ids"].shape))
    hook = model.base_model.register_forward_hook(note, with_kwargs=True)
    model.zero_grad()
    for batch in batches:
        trainer.compute_loss(model, dict(batch), num_items_in_batch=None).backward()
    hook.remove()
    return torch.cat([each.grad.flatten() for each in model.parameters()]), shapes

def alike(one, other):
    assert one.abs().max() > 0
    assert torch.allclose(one, other, atol=1e-6), (one - other).abs().max()
"""
SFT_GRADIENT = """
labels = torch.randint(5, 50, (3, 8))
labels[torch.rand(3, 8) < 0.5] = -100
mask = right_padded(8, 5, 6)
batch = {"input_ids": torch.randint(5, 50, (3, 8)), "attention_mask": mask, "labels": labels.where(mask == 1, -100)}
data = Dataset.from_list([{"input_ids": [5], "labels": [5]}])
config = SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, **settings)

def trainer(kind):
    return kind(model=model, processing_class=tokenizer, args=config, train_dataset=data)

alike(gradient(trainer(SFTTrainer), [batch])[0], gradient(trainer(FastSFTTrainer), [batch])[0])
print("all is well")
"""
GRPO_GRADIENT = """
halves = {"per_device_train_batch_size": 2, "steps_per_generation": 2, "num_generations": 4}
config = GRPOConfig(temperature=0.7, **halves, **settings)
data = Dataset.from_list([{"prompt": "a"}])

def trainer(kind):
    rewards = {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
    return kind(model=model, processing_class=tokenizer, args=config, train_dataset=data, **rewards)

def played(*advantages):
    torch.manual_seed(0)
    completion_mask = right_padded(7, 3, 5, 9)
    columns = {
        "prompt_ids": torch.randint(5, 50, (4, 6)),
        "prompt_mask": right_padded(4, 2, 3, 6).flip(1),
        "completion_ids": torch.randint(5, 50, (4, 9)),
        "completion_mask": completion_mask,
        "tool_mask": (torch.rand(4, 9) < 0.7).long(),
        "advantages": torch.tensor(advantages),
    }
    halves = [{name: each[rows] for name, each in columns.items()} for rows in (slice(2), slice(2, 4))]
    return [{**half, "num_items_in_batch": completion_mask.sum()} for half in halves]

for advantages, less in (
    ((1.0, 0.0, -0.5, 0.7), [(2, 11), (1, 15)]),
    ((0.0, 0.0, -0.5, 0.7), [(1, 8), (1, 15)]),
    ((0.0, 0.0, 0.0, 0.7), [(1, 11), (1, 15)]),
    (([0.2] * 9, [0.0] * 9, [0.0, -0.5, 0.4] * 3, [0.0] * 8 + [0.7]), [(2, 11), (1, 15)]),
):
    batches = played(*advantages)
    whole, all_of_it = gradient(trainer(GRPOTrainer), batches)
    without, shapes = gradient(trainer(FastGRPOTrainer), drop_rows_without_advantage(batches))
    alike(whole, without)
    assert (all_of_it, shapes) == ([(2, 15)] * 2, less), (all_of_it, shapes)
nothing, shapes = gradient(trainer(FastGRPOTrainer), drop_rows_without_advantage(played(0.0, 0.0, 0.0, 0.0)))
assert not nothing.any() and len(shapes) == 2
print("all is well")
"""
TURNS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from turn_advantages import DISCOUNT, turn_advantages

won = {"prompt": "game", "states": ["hall", "kitchen"], "reward": 1.0}
lost = {"prompt": "game", "states": ["hall", "hall", "attic"], "reward": 0.0}
other = {"prompt": "another game", "states": ["hall"], "reward": 1.0}
written = torch.tensor([[1, 1, 0, 1, 0, 0], [1, 0, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0]])
worth = DISCOUNT
mean = worth / 3
right, wrong = worth - mean, -mean
expected = torch.tensor([[right, right, 0, 0, 0, 0], [wrong, 0, wrong, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
found = turn_advantages([won, lost, other], written)
assert torch.allclose(found, expected), found
print("all is well")
"""
SCHEDULE = """
import sys
from collections import Counter
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from routes.alfworld import GameSchedule

names = [f"{kind} {number}" for number in range(20) for kind in ("easy", "hopeless", "open")]
games = {name: SimpleNamespace(kind=name.split()[0]) for name in names}
schedule = GameSchedule(games, names, seed=0)
for _ in range(300):
    schedule.record(["easy 0", "hopeless 0", "open 0", "open 1"], [1.0, 0.0, 1.0, 0.0])
drawn = [schedule.game_for(f"place {place}") for place in range(200)]
assert drawn == [schedule.game_for(f"place {place}") for place in range(200)], "a group plays one game"
kinds = Counter(name.split()[0] for name in drawn)
assert kinds["open"] > 150 and kinds["easy"] and kinds["hopeless"], kinds
assert len(set(drawn[:20])) == 20, "none again before the others were played"
print("all is well")
"""


def run(folder: Path, script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return ended.stdout.strip().rpartition("\n")[2] or ended.stderr


def test_skipping_masked_tokens_does_not_change_the_sft_gradient(tmp_path: Path, repository: Path) -> None:
    model = build_base_model(tmp_path / "model")
    assert run(tmp_path, SETTING + SFT_GRADIENT, repository / "agents" / "scripted", model) == "all is well"


def test_skipping_zero_advantages_keeps_the_grpo_gradient(tmp_path: Path, repository: Path) -> None:
    model = build_base_model(tmp_path / "model")
    assert run(tmp_path, SETTING + GRPO_GRADIENT, repository / "agents" / "scripted", model) == "all is well"


def test_a_turn_is_compared_with_others_in_the_same_state(tmp_path: Path, repository: Path) -> None:
    """These are the turns that were taken in the same state of the same game."""
    assert run(tmp_path, TURNS, repository / "agents" / "scripted") == "all is well"


def test_alfworld_plays_mostly_the_kinds_that_are_sometimes_won(tmp_path: Path, repository: Path) -> None:
    assert run(tmp_path, SCHEDULE, repository / "agents" / "scripted") == "all is well"
