"""What the scripted agent adds to TRL: a pass over less, with the same gradient, and a choice of games."""

import subprocess
import sys
from pathlib import Path

from tests.small_model import build_base_model

GRADIENT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from agent import LeanGRPOTrainer, load
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)
model, tokenizer = load(Path(sys.argv[2]))
settings = {"per_device_train_batch_size": 4, "num_generations": 4, "use_cpu": True, "bf16": False}
config = GRPOConfig(output_dir="trainer", report_to=[], **settings)
data = Dataset.from_list([{"prompt": "a"}])

def trainer(kind):
    rewards = {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
    return kind(model=model, processing_class=tokenizer, args=config, train_dataset=data, **rewards)

def right_padded(*lengths):
    return torch.tensor([[1] * length + [0] * (max(lengths) - length) for length in lengths])

def gradient(kind, advantages):
    torch.manual_seed(0)
    completion_mask = right_padded(7, 3, 5, 9)
    inputs = {
        "prompt_ids": torch.randint(5, 50, (4, 6)),
        "prompt_mask": right_padded(4, 2, 3, 6).flip(1),
        "completion_ids": torch.randint(5, 50, (4, 9)),
        "completion_mask": completion_mask,
        "tool_mask": (torch.rand(4, 9) < 0.7).long(),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": completion_mask.sum(),
    }
    seen = []
    note = lambda module, args, inputs, output: seen.append(tuple(inputs["input_ids"].shape))
    hook = model.register_forward_hook(note, with_kwargs=True)
    of = trainer(kind)
    model.zero_grad()
    of.current_gradient_accumulation_steps = 1
    of.compute_loss(model, inputs).backward()
    hook.remove()
    return torch.cat([each.grad.flatten() for each in model.parameters()]), seen[0]

whole, all_of_it = gradient(GRPOTrainer, [1.0, 0.0, -0.5, 0.0])
lean, less = gradient(LeanGRPOTrainer, [1.0, 0.0, -0.5, 0.0])
assert whole.abs().max() > 0
assert torch.allclose(lean, whole, atol=1e-6), (lean - whole).abs().max()
assert (all_of_it, less) == ((4, 15), (2, 11)), (all_of_it, less)
nothing, _ = gradient(LeanGRPOTrainer, [0.0] * 4)
assert not nothing.any()
print("all is well")
"""
PRACTICE = """
import sys
from collections import Counter
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from routes.alfworld import Practice

names = [f"{kind} {number}" for number in range(20) for kind in ("easy", "hopeless", "open")]
games = {name: SimpleNamespace(kind=name.split()[0]) for name in names}
practice = Practice(games, names, seed=0)
for _ in range(300):
    practice.played(["easy 0", "hopeless 0", "open 0", "open 1"], [1.0, 0.0, 1.0, 0.0])
drawn = [practice.game_at(f"place {place}") for place in range(200)]
assert drawn == [practice.game_at(f"place {place}") for place in range(200)], "a group plays one game"
kinds = Counter(name.split()[0] for name in drawn)
assert kinds["open"] > 150 and kinds["easy"] and kinds["hopeless"], kinds
assert len(set(drawn[:20])) == 20, "none again before the others were played"
print("all is well")
"""


def run(folder: Path, script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return ended.stdout.strip().rpartition("\n")[2] or ended.stderr


def test_leaving_out_what_has_no_advantage_does_not_change_the_gradient(tmp_path: Path, repository: Path) -> None:
    model = build_base_model(tmp_path / "model")
    assert run(tmp_path, GRADIENT, repository / "agents" / "scripted", model) == "all is well"


def test_alfworld_practises_the_kinds_of_games_that_are_sometimes_won(tmp_path: Path, repository: Path) -> None:
    assert run(tmp_path, PRACTICE, repository / "agents" / "scripted") == "all is well"
