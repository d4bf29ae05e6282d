"""Tests what the scripted agent adds to TRL: cheaper passes with the same gradient, and a selection of items."""

import importlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.run_maker import REPOSITORY
from tests.small_model import build_base_model

SETTING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
import a2rl.sampling.decoder
from training import FEWEST_TOKENS, Grpo, Sft, load
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

sys.modules["decoder"] = a2rl.sampling.decoder  # every agent gets it with the data
torch.set_num_threads(1)
model, tokenizer, *_ = load(Path(sys.argv[2]))
settings = {"output_dir": "trainer", "report_to": [], "use_cpu": True, "bf16": False}

def right_padded(*lengths):
    return torch.tensor([[1] * length + [0] * (max(lengths) - length) for length in lengths])

def gradient(trainer, batch):
    trainer.current_gradient_accumulation_steps = 1
    model.zero_grad()
    trainer.compute_loss(model, dict(batch), num_items_in_batch=None).backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])

def alike(one, other):
    assert one.abs().max() > 0
    assert torch.allclose(one, other, atol=1e-6), (one - other).abs().max()
"""
SFT_GRADIENT = """
labels = torch.randint(5, 50, (3, 8))
labels[torch.rand(3, 8) < 0.5] = -100
mask = right_padded(8, 5, 6)
batch = {"input_ids": torch.randint(5, 50, (3, 8)), "attention_mask": mask, "labels": labels.where(mask == 1, -100)}
batch["labels"] = batch["input_ids"].where(batch["labels"] != -100, -100)
data = Dataset.from_list([{"input_ids": [5], "labels": [5]}])
config = SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, **settings)

def trainer(kind):
    return kind(model=model, processing_class=tokenizer, args=config, train_dataset=data)

theirs, ours = gradient(trainer(SFTTrainer), batch), trainer(Sft)
# A text's first token has nothing before it; TRL counts it neither.
batch["labels"][:, 0] = -100
theirs = gradient(trainer(SFTTrainer), batch)
alike(theirs, gradient(ours, batch))
ours.tokens_at_once = 9  # two texts do not fit
alike(theirs, gradient(ours, batch))

# Texts that begin alike, also where one of them ends or learns early.
batch["input_ids"][:, :4] = batch["input_ids"][0, :4]
batch["labels"][:, :4] = -100
batch["labels"][:, 4] = batch["input_ids"][:, 4]
for seen in (2, 4):
    batch["labels"][1, seen:4] = batch["input_ids"][1, seen:4]
    theirs = gradient(trainer(SFTTrainer), batch)
    ours.tokens_at_once = None
    alike(theirs, gradient(ours, batch))
    ours.tokens_at_once = 8 - 4 + 6 - 4
    alike(theirs, gradient(ours, batch))

refused = []
backward = ours.backward
def small_memory(model, part, scale):
    if sum(len(text.tokens) for text in part) > 8:
        refused.append(ours.tokens_at_once)
        raise torch.OutOfMemoryError
    return backward(model, part, scale)
ours.backward, ours.tokens_at_once = small_memory, 4 * FEWEST_TOKENS
alike(theirs, gradient(ours, batch))
assert len(refused) > 1 and ours.tokens_at_once <= 16

# A text that does not fit alone is left out.
def smaller_memory(model, part, scale):
    if len(part[0].tokens) > 6:
        raise torch.OutOfMemoryError
    return backward(model, part, scale)
ours.backward = smaller_memory
assert any(each.abs().max() > 0 for each in gradient(ours, batch))
ours.backward = lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError)
try:
    gradient(ours, batch)
except torch.OutOfMemoryError:
    print("no text fits")
print("all is well")
"""
GRPO_GRADIENT = """
config = GRPOConfig(temperature=1.0, per_device_train_batch_size=4, num_generations=4, beta=0.0, **settings)
data = Dataset.from_list([{"prompt": "a"}])

def trainer(kind):
    rewards = {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
    return kind(model=model, processing_class=tokenizer, args=config, train_dataset=data, **rewards)

completion_mask = right_padded(7, 3, 5, 9)
played = {
    "prompt_ids": torch.randint(5, 50, (4, 6)),
    "prompt_mask": right_padded(4, 2, 3, 6).flip(1),
    "completion_ids": torch.randint(5, 50, (4, 9)),
    "completion_mask": completion_mask,
    "tool_mask": (torch.rand(4, 9) < 0.7).long(),
}
for advantages in ((1.0, 0.0, -0.5, 0.7), (0.0, 0.0, 0.0, 0.7)):
    batch = {**played, "advantages": torch.tensor(advantages)}
    written = (batch["completion_mask"] * batch["tool_mask"]).sum()
    # TRL divides by all tokens of the completions, also those of the environment.
    theirs = gradient(trainer(GRPOTrainer), {**batch, "num_items_in_batch": written})
    alike(theirs, gradient(trainer(Grpo), batch))

by_turn = trainer(Grpo)
row = torch.cat([played["prompt_ids"][0][2:], played["completion_ids"][0][:7]]).tolist()
by_turn.turn_advantages = {tuple(row): [1.0] * 7}
once = gradient(by_turn, {**played, "advantages": torch.tensor([1.0, 0.0, 0.0, 0.0])})
alike(once, gradient(trainer(Grpo), {**played, "advantages": torch.tensor([2.0, 0.0, 0.0, 0.0])}))
nothing = trainer(Grpo).compute_loss(model, {**played, "advantages": torch.zeros(4)})
assert float(nothing) == 0
print("all is well")
"""
PACKED = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import torch
import a2rl.sampling.decoder
from training import LearnedTokens, Text
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig, Lfm2Config, LlamaConfig

sys.modules["decoder"] = a2rl.sampling.decoder
torch.set_num_threads(1)
torch.manual_seed(0)
sizes = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "initializer_range": 0.3,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}
experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
kinds = ["sliding_attention", "full_attention"]
configs = [LlamaConfig(**sizes, attn_implementation="eager"), Lfm2Config(**sizes, layer_types=["conv", kinds[1]])]
for window in (8, 512):
    configs.append(Gemma2Config(**sizes, sliding_window=window, layer_types=kinds, query_pre_attn_scalar=8))
    configs.append(GptOssConfig(**sizes, **experts, sliding_window=window, layer_types=kinds))

class Given(LearnedTokens):
    accelerator = SimpleNamespace(
        device="cpu", num_processes=1, backward=torch.Tensor.backward, unwrap_model=lambda model: model,
        reduce=lambda number, how: number,
    )
    def texts(self, inputs):
        return inputs, sum(int(text.weights.sum()) for text in inputs)

def text(begins, length):
    tokens = torch.cat([begins, torch.randint(50, (length,))])
    return Text(tokens, (torch.arange(len(tokens)) >= len(begins)).float())

def learned(model, texts, at_once):
    trainer = Given()
    trainer.tokens_at_once = trainer.most_at_once = at_once
    model.zero_grad()
    loss = trainer.compute_loss(model, texts)
    return loss.item(), torch.cat([each.grad.flatten() for each in model.parameters()])

for config in configs:
    model = AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation)
    for begins in (torch.randint(50, (10,)), torch.tensor([], dtype=torch.long)):
        texts = [text(begins, length) for length in (12, 20, 7)]
        (alone, gradient), (packed, other) = (learned(model, texts, at_once) for at_once in (1, 0))
        assert abs(alone - packed) < 1e-4, (config.model_type, alone, packed)
        assert torch.allclose(gradient, other, atol=1e-3 * gradient.abs().max()), config.model_type
print("all is well")
"""
TURNS = """
import sys
sys.path.insert(0, sys.argv[1])
from playing import DISCOUNT, TURN_WEIGHT, turn_advantages

names, rewards = ["game", "game", "another game"], [1.0, 0.0, 1.0]
states = [["hall", "kitchen"], ["hall", "hall", "attic"], ["hall"]]
written = [[1, 1, 0, 1, 0, 0], [1, 0, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0]]
completions = [[10] * 6, [11] * 6, [12] * 6]
played = {"prompt_ids": [[1]] * 3, "completion_ids": completions, "env_mask": written, "reward": rewards}
mean = DISCOUNT / 3
right, wrong = TURN_WEIGHT * (DISCOUNT - mean), -TURN_WEIGHT * mean
found = turn_advantages(names, played, states)
expected = [[right, right, 0, 0, 0, 0], [wrong, 0, wrong, 0, 0, 0], [0] * 6]
for row, values in zip(completions, expected):
    assert all(abs(one - other) < 1e-5 for one, other in zip(found[(1, *row)], values)), (found, expected)
assert turn_advantages(names, played, [[], [], []]) == {}
print("all is well")
"""
SCHEDULE = """
import sys
from collections import Counter
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from playing import Schedule

names = [f"{kind} {number}" for number in range(20) for kind in ("easy", "hopeless", "open")]
schedule = Schedule(SimpleNamespace(kind=lambda name: name.split()[0]), names, seed=0)
for _ in range(300):
    schedule.record(["easy 0", "hopeless 0", "open 0", "open 1"], [1.0, 0.0, 1.0, 0.0])
drawn = [schedule.name_for(f"place {place}", 1) for place in range(200)]
assert drawn == [schedule.name_for(f"place {place}", 1) for place in range(200)], "a group plays one game"
kinds = Counter(name.split()[0] for name in drawn)
assert kinds["open"] > 150 and kinds["easy"] and kinds["hopeless"], kinds
assert len(set(drawn[:20])) == 20, "none again before the others were played"
assert [schedule.name_for(f"place {place}", 2) for place in range(200)] != drawn, "the next step has other games"
print("all is well")
"""


CLOCK = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from training import TrainUntil

def stops(clock, step):
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    clock.on_step_begin(None, None, control)
    clock.on_step_end(None, SimpleNamespace(global_step=step), control)
    return control.should_training_stop

assert [stops(TrainUntil("sft", 1e6, None, 30), step) for step in (29, 30, 31)] == [False, True, True]
assert not stops(TrainUntil("sft", 1e6), 30)
assert stops(TrainUntil("sft", 1e6, 30), 30) and stops(TrainUntil("sft", 0), 1)
assert round(TrainUntil("sft", 1e6, None, 30).learning_rate_factor(15), 2) == 0.5
assert round(TrainUntil("sft", 1e6).learning_rate_factor(15), 2) == 1.0
print("all is well")
"""
CONTINUED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import a2rl.sampling.decoder
from training import TrainUntil, adam, load, sft

sys.modules["decoder"] = a2rl.sampling.decoder
rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 4
TrainUntil.SAVED_EVERY_S = -1  # after each step

def share_done(seconds, most):
    trained, clock = load(Path(sys.argv[2])), TrainUntil("sft", 1e6, None, most)
    clock.started -= seconds
    sft(trained, adam(trained.model, 1e-3), clock, {"output_dir": "trainer", "per_device_train_batch_size": 2}, rows)
    return round(clock.done(), 2)

assert share_done(8e5, 2) == 0.8
assert share_done(5e5, 3) == 0.9  # half of what was left
assert share_done(0, 4) == 0.9
print("all is well")
"""
FEW_ITEMS = """
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import a2rl.sampling.decoder
import agent

sys.modules["decoder"] = a2rl.sampling.decoder
groups = []

def rollout(prompts, trainer):
    groups.append(Counter(prompts))
    columns = {"prompt_ids": [5, 6], "completion_ids": [7, 8], "logprobs": [-1.0, -1.0], "env_mask": [1, 1]}
    rewards = [float(place % 2) for place in range(len(prompts))]
    return {**{column: [values] * len(prompts) for column, values in columns.items()}, "reward": rewards}

plan = object.__new__(agent.Plan)
plan.output, plan.progress, plan.small, plan.seed, plan.steps = Path(), agent.Progress("base"), True, 0, 2
plan.names, plan.player = ["an item"], SimpleNamespace(rollouts=lambda trained, names: rollout)
plan.best_model, plan.conclude = lambda: agent.load(Path(sys.argv[2])), lambda *_: True
plan.reinforce_once("grpo-1", 600, 1.0)
assert len(groups) == 2 and all(set(step.values()) == {8} and len(step) >= 8 for step in groups), groups
print("all is well")
"""
PLAYER = """
import sys, time
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from playing import ANSWERS, AT_ONCE, Player

class Route:
    play_settings = {"max_steps": 1}
    def environment(self, name):
        return SimpleNamespace(prompt="example question")
    def plain(self, name):
        return SimpleNamespace(prompt="question")

class Model(Player):
    # Of eight answers, it gives so many right ones, by the length of the prompt.
    def play(self, trained, names, temperature, seed, asked, until):
        prompt = asked(names[0]).prompt
        self.prompts.append(prompt)
        self.greedy += [] if temperature else names
        said = len(self.prompts) if varied else 0
        rewards = [float(place % 8 < right[len(prompt)]) for place in range(len(names))]
        return [
            SimpleNamespace(reward=reward, cut=place>=whole, tokens=[int(name), said] + [9] * (place % 2))
            for place, (name, reward) in enumerate(zip(names, rewards))
        ]

def sampled(questions):
    model = Model(Route(), SimpleNamespace(seed=0, small=True, meta=meta, tokens=len_of))
    model.prompts, model.greedy = [], []
    names = [str(100 + number) for number in range(questions)]
    found = model.right_answers(trained, names, time.monotonic() + 60, 0.1, known)
    assert model.greedy == names[: len(model.greedy)]  # a second answer would be the same
    return *found, model.prompts

def len_of(prompt):
    return [len(prompt)]

meta = {"chat_template_kwargs": {}, "max_steps": 7, "max_new_tokens": 4}
limits = Player(Route(), SimpleNamespace(seed=0, small=True, meta=meta)).settings
assert (limits["max_steps"], limits["max_new_tokens"]) == (1, 4)  # the grader's, unless the route has its own
trained = SimpleNamespace(tokenizer=SimpleNamespace(eos_token_id=9))
right, known, whole, varied = {16: 2, 8: 4}, 0.25, 1000, True
rows, count, asked, prompts = sampled(20)
assert asked == 20 * ANSWERS and prompts == ["question"] * 2
rows, count, asked, prompts = sampled(AT_ONCE)
assert prompts == ["question"] * 4
assert asked == 4 * AT_ONCE and len(rows) == asked // 2
assert all(row["input_ids"][0] == 16 and row["input_ids"][-1] == 9 for row in rows)  # asked as the grader asks
assert all(row["labels"] == [-100] + row["input_ids"][1:] for row in rows)
assert all(row["input_ids"].count(9) == 1 for row in rows)
varied = False
rows, count, asked, prompts = sampled(AT_ONCE)
assert prompts == ["question"] * 4  # to say the same again is as right as to say something else
assert (len(rows), count, asked) == (AT_ONCE // 2, asked // 2, 4 * AT_ONCE)
varied = True

right = {16: 2, 8: 1}
rows, count, asked, prompts = sampled(AT_ONCE)
assert prompts == ["question"] + ["example question"] * 3  # as the grader asks, it is right more often
assert asked == 3 * AT_ONCE and len(rows) == asked // 4

right = {16: 0, 8: 0}
rows, count, asked, prompts = sampled(AT_ONCE)
assert (rows, prompts) == ([], ["question", "example question"])  # no more is asked than it takes to see that
rows, count, asked, prompts = sampled(3)
assert asked <= 3 * ANSWERS

right, whole = {16: 2, 8: 8}, 10
rows, count, asked, prompts = sampled(AT_ONCE)
assert len(rows) == asked == 10 * len(prompts)  # what was cut off is neither right nor wrong

class Slow(Player):
    # An episode takes 0.01 s, and the first half of the names is won.
    def play(self, trained, names, temperature, until):
        self.latest = until
        self.sizes.append(len(names))
        time.sleep(len(names) / 100)
        return [SimpleNamespace(reward=float(int(name) < 20)) for name in names]

def measured(questions, seconds):
    model = Slow(Route(), SimpleNamespace(seed=0, small=True, meta=meta))
    model.sizes = []
    names = [str(number) for number in range(questions)]
    begun = time.monotonic()
    rewards = model.measure(trained, names, begun + seconds)
    assert not rewards or model.latest - begun >= 1.4 * seconds - 1
    assert list(rewards) == names[: len(rewards)]
    return [*rewards.values()], model.sizes

assert measured(3, 0) == ([1] * 3, [3])
assert measured(9, 0) == ([1] * 8, [8])  # at least eight
assert measured(40, 30)[0] == [1] * 20 + [0] * 20
assert measured(9, float("inf")) == ([1] * 9, [9])
assert measured(0, 30) == ([], [])
print("all is well")
"""
CHECKPOINTS = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import agent

def items(right, asked):
    return {str(number): float(number < right) for number in range(asked)}

def conclude(held_out, gain, best):
    # A checkpoint with these answers to held-out items and this gain, against the best so far.
    plan = object.__new__(agent.Plan)
    submitted = []
    def submit(checkpoint, stage, parent):
        submitted.append(checkpoint.name)
        return gain
    plan.output, plan.file, plan.grader = Path(), Path("progress.json"), SimpleNamespace(submit=submit)
    plan.progress, plan.measures, plan.held_out = agent.Progress(*best), bool(held_out), ["an item"] * 64
    plan.measure = lambda trained, name: held_out
    is_better = plan.conclude(None, "new", "SFT")
    assert plan.progress.done == ["SFT"] and (plan.progress.best == "new") == is_better
    return submitted, is_better

agent.save = lambda trained, checkpoint: None
base = ("base", 0.0, items(23, 64))
assert conclude(items(18, 64), 5.0, base) == ([], False)  # clearly worse
assert conclude(items(22, 64), 5.0, base) == (["new"], True)  # chance may explain it, and the grader found it better
assert conclude(items(22, 64), 0.5, base) == (["new"], False)
assert conclude(items(26, 64), -1.0, base) == (["new"], True)
assert conclude(items(26, 64), None, base) == (["new"], False)  # refused
assert conclude(items(18, 24), 0.5, base) == ([], False)  # worse on those items that both were measured on
assert conclude(items(5, 8), 99.0, ("base", 0.0, items(8, 8))) == ([], False)
assert conclude(items(7, 8), 99.0, ("base", 0.0, items(8, 8))) == (["new"], True)  # of so few, one says little
assert conclude({}, 3.0, ("first", 2.0)) == (["new"], True)  # nothing is measured in a short time
assert conclude({}, 2.0, ("first", 3.0)) == (["new"], False)

def imitated(different, right, asked):
    # How many of the model's own answers are imitated.
    plan = object.__new__(agent.Plan)
    rows = [{"input_ids": [number]} for number in range(different)]
    sample = lambda *_: (rows, right, asked)
    plan.player = SimpleNamespace(settings={"max_steps": 1}, right_answers=sample)
    plan.measures, plan.names, plan.progress, plan.setting = True, [], agent.Progress(), SimpleNamespace(context=9)
    return len(plan.own_answers(None, 1.0))

assert [imitated(31, 124, 310), imitated(32, 124, 1000), imitated(32, 32, 400)] == [0, 32, 0]

def killed(**known):
    # What is begun, and what is known, when the agent is killed in the next round of GRPO.
    plan = object.__new__(agent.Plan)
    plan.output, plan.file, plan.mode, plan.measures, plan.steps = Path(), Path("progress.json"), "free", True, None
    plan.progress, plan.route, plan.loaded = agent.Progress(**known), SimpleNamespace(can_play=True), "base"
    plan.reserve_s = plan.measuring_s = 0
    plan.remaining_s, plan.sft_share = lambda: 900, lambda: 0.5
    begun = []
    def note(what, result):
        return lambda *rest: begun.append(what) or result
    plan.measure = note("measure", {"an item": 0.5})
    plan.own_answers, plan.given_answers = note("own", []), note("given", [])
    def reinforced(name, *rest):
        begun.append(name)
        raise KeyboardInterrupt
    plan.reinforce_once = reinforced
    try:
        plan.run()
    except KeyboardInterrupt:
        return begun, json.loads(plan.file.read_text())

begun, known = killed()
assert begun == ["measure", "own", "given", "grpo-1"] and known["held_out"] == {"an item": 0.5}
assert [each.name for each in Path().glob("progress*")] == ["progress.json"]
assert killed(**known)[0] == ["grpo-1"]  # it goes on from the state of this round
known["done"].append("GRPO")
assert killed(**known)[0] == ["grpo-2"]

# A grade takes long by the clock, and nothing of the budget.
plan, seconds = object.__new__(agent.Plan), []
plan.progress, plan.reserve_s, plan.remaining_s, plan.sft_share = agent.Progress(), 0, lambda: 900, lambda: 0.5
plan.best_model = lambda: "base"
plan.own_answers = plan.given_answers = lambda *_: []
plan.fine_tune = lambda trained, rows, stage, left_s: seconds.append(left_s)
agent.time.monotonic = iter(range(0, 100_000, 1000)).__next__
plan.imitate()
assert seconds == [300, 450]
print("all is well")
"""
IMITATES = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import a2rl.sampling.decoder
import agent
from training import Trained

sys.modules["decoder"] = a2rl.sampling.decoder
os.environ |= dict.fromkeys(("OUTPUT_DIR", "GRADING_SERVER_URL", "MODEL_PATH", "DATA_PATH", "TASK"), "any")
meta = {"mode": "free", "seed": 0, "timeout_s": 900, "max_steps": 1, "max_new_tokens": 4, "chat_template_kwargs": {}}
Path("run_meta.json").write_text(json.dumps(meta))
agent.Grader = lambda url: SimpleNamespace(remaining_s=lambda: 900.0)

def plays(kind, player=None):
    config = SimpleNamespace(num_attention_heads=1, max_position_embeddings=64, layer_types=[kind, "full_attention"])
    config.get_text_config = lambda: config
    route = SimpleNamespace(can_play=True, names=list("abcdefghijkl"), play_settings={})
    agent.load = lambda path: Trained(SimpleNamespace(config=config), None, 1, player)
    agent.load_route = lambda task, setting: route
    plan = agent.Plan()
    assert plan.measures == route.can_play and plan.sft_share() == (0.8 if route.can_play else 1.0)
    return route.can_play

agent.SMALL_MODEL = 0
assert plays("sliding_attention") and not plays("linear_attention") and not plays("conv", player="a copy of the model")
assert plays("linear_attention", player=SimpleNamespace(llm_engine="of vLLM"))
print("all is well")
"""
MEMORY = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
import training
from training import FEWEST_TOKENS, Text, load, parts, tokens_that_fit

for asked, has_adapter in (("1", True), ("0", False)):
    os.environ["ADAPTER"] = asked
    assert load(Path(sys.argv[2])).has_adapter == has_adapter
model = load(Path(sys.argv[2])).model
plenty = tokens_that_fit(model)
Path("run_meta.json").write_text(json.dumps({"memory_gib": 0.1}))
assert tokens_that_fit(model) == FEWEST_TOKENS < plenty

def text(first, length):
    return Text(torch.tensor([7] * 50 + [first] * length), torch.tensor([0.0] * 50 + [1.0] * length))

texts = [text(first, 20) for first in range(6)]
assert [len(part) for part in parts(texts, 1000, 45)] == [2, 2, 2]  # what they begin with does not count
assert [len(part) for part in parts(texts, 115, 1000)] == [3, 3]  # but it takes memory, once
assert [len(part) for part in parts(texts, 10, 10)] == [1] * 6

def weights(**stored):
    folder = Path("stored")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"mamba_ssm_dtype": "float32", **stored}))
    (folder / "model.safetensors").write_bytes(bytes(800))
    return training.weights_in(folder)

inner = {"model_type": "gemma3_text", "dtype": "bfloat16"}
assert weights(model_type="qwen3_next", torch_dtype="bfloat16") == 400  # whatever type its states have
assert weights(model_type="gemma3", text_config=inner) == 400
assert weights(model_type="gemma3", dtype="float32", text_config=inner) == weights(model_type="llama", dtype="float32")
assert weights(model_type="llama", torch_dtype="float32") == 200

# With little memory, a processor that is slow in bfloat16 trains an adapter in float32, on fewer tokens at once.
room = training.weights_in(Path(sys.argv[2])) * 4 + 1000 * training.bytes_per_token(model.config)
training.is_fast_in_bfloat16, training.free_bytes = lambda: False, lambda: int(room / 0.8)
adapted = load(Path(sys.argv[2]))
assert adapted.has_adapter and {weights.dtype for weights in adapted.model.parameters()} == {torch.float32}
print("all is well")
"""
VLLM = """
import os, sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import torch
import training

def player(asked, start):
    os.environ["VLLM"], training.start_vllm = asked, start
    training._ENGINES.clear()
    players = [training.load(Path(sys.argv[2])).player for checkpoint in range(2)]
    assert players[0] is players[1]  # one engine for all checkpoints
    return players[0]

def fails(path):
    raise ImportError("there is no vLLM here")

class Engine:
    # Takes over all weights, or forgets what it is given.
    def __init__(self, takes):
        self.takes, self.model = takes, training.load(Path(sys.argv[2])).model
        with torch.no_grad():
            for weights in self.model.parameters():
                weights.zero_()
    def apply_model(self, look):
        return [look(self.model)]

@contextmanager
def awake(engine, weights):
    if engine.takes:
        engine.model.load_state_dict(dict(weights), strict=False)
    yield

sys.modules["decoder"] = SimpleNamespace(awake=awake, checkpoint_weights=lambda model: model.named_parameters())
for takes in (True, False):
    engine = Engine(takes)
    trained = training.load(Path(sys.argv[2]))._replace(player=engine)
    training._ENGINES[:] = [engine]
    assert training.with_tried_player(trained).player is (engine if takes else None)
    assert training._ENGINES == [engine if takes else None]
    training._ENGINES.clear()

assert player("1", lambda path: path.name) == "model"
assert player("1", fails) is None
assert player("0", lambda path: path.name) is None
assert player("", lambda path: path.name) is None  # not for a very small model
print("all is well")
"""
ROWS = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from routes import rows_of

rows = [{"question": "two\u2028lines\x85or\x0bmore"}, {"question": "one"}]
Path("train.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\\n" for row in rows), encoding="utf-8")
assert rows_of(Path("train.jsonl")) == rows
print("all is well")
"""
CHOICES = """
import sys
from pathlib import Path
from types import SimpleNamespace
repository = Path(sys.argv[1]).parents[1]
sys.path[:0] = [sys.argv[1], str(repository)]
import playing
import routes
import training
from tests.bench import training as bench

class Route(routes.BaseRoute):
    names, play_settings = [str(number) for number in range(6)], {}
    def example(self, name):
        return routes.Example("How many? ", [routes.Part(name, True)])

bench.CHOICES = {("a model", "a task"): {"all weights": bench.Choice(), "an adapter": bench.Choice(adapter=True)}}
bench.ITEMS = bench.HELD_OUT = {"a model": 3}
bench.mirror_of = lambda task, settings: None
bench.ensure_data = lambda *_: Path()
bench.resolve_model = lambda name, settings: Path(sys.argv[2])
routes.load_route = lambda task, setting: Route()
imitated = []
training.sft = lambda trained, *_: imitated.append(trained.has_adapter)
playing.Player.play = lambda self, trained, names, *_, **__: [SimpleNamespace(reward=1.0) for name in names]
rows = list(bench.training_choices(SimpleNamespace(root=repository), Path()))
assert imitated == [False, True] and all("3 of 3 held-out items" in str(row) for row in rows), rows
print("all is well")
"""
FAILURES = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import a2rl.handout.rollout_workers
import a2rl.handout.rows
import a2rl.sampling.decoder

sys.modules |= {"decoder": a2rl.sampling.decoder, "rollout_workers": a2rl.handout.rollout_workers}
import a2rl.handout.episodes

sys.modules |= {"episodes": a2rl.handout.episodes, "rows": a2rl.handout.rows}
import routes.rows

class Environment:
    prompt, done, reward, invalid = "Where to?", False, 1.0, 0
    def __init__(self, row):
        pass
    def write(self, turn):
        if turn == "quit":
            raise SystemExit
        return f"You {turn}."

rows = [{"answer": "go"}, {"answer": "go\\nquit"}]
Path("train.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
asked = {"prompt": lambda row: "How long?", "reward": lambda row, answer: 1 / len(answer)}
said = []
routes.rows.log = said.append

def attempt(items, turn):
    sys.modules["items"] = items
    route = routes.rows.Route(SimpleNamespace(data=Path(), seed=0, chat=False))
    played = route.environment("0")
    answer = played.write(turn)
    return answer, played.done, played.reward, sum(route.example(name) is not None for name in route.names)

of_one_turn, of_many = SimpleNamespace(**asked), SimpleNamespace(Environment=Environment)
assert attempt(of_one_turn, "four") == ("", True, 0.25, 2)
assert attempt(of_one_turn, "") == ("", True, 0.0, 2)
assert attempt(of_many, "go") == ("You go.", False, 1.0, 1)
assert attempt(of_many, "quit") == ("", True, 0.0, 1)
assert len(said) == 1 and "ZeroDivisionError" in said[0], said
print("all is well")
"""


CLAIMS = {
    "skipping masked tokens does not change the SFT gradient": SETTING + SFT_GRADIENT,
    "skipping zero advantages keeps the GRPO gradient": SETTING + GRPO_GRADIENT,
    "packed texts have the gradient that they have one by one": PACKED,
    "a turn is compared with others in the same state of the same game": TURNS,
    "alfworld plays mostly the kinds that are sometimes won": SCHEDULE,
    "rows may contain Unicode line separators": ROWS,
    "a clock also stops after the most steps": CLOCK,
    "a stage that is continued goes on at its learning rate": CONTINUED,
    "a step of GRPO is whole where the items are few": FEW_ITEMS,
    "a reward that fails is one of nothing": FAILURES,
    "a model is asked as it answers best, and measured": PLAYER,
    "only a checkpoint that is clearly worse is kept back": CHECKPOINTS,
    "a model that cannot play without vLLM only imitates": IMITATES,
    "a pass fits into the agent's memory": MEMORY,
    "an engine of vLLM plays where it starts": VLLM,
    "the bench trains and measures each choice": CHOICES,
}
"""What holds, and the script that ends with "all is well" if it does."""
IN_FORKS = """
import json, os, sys, traceback
from trl import GRPOTrainer, SFTTrainer
for number, script in enumerate(json.loads(sys.argv[3])):
    if os.fork() == 0:
        os.mkdir(str(number))
        os.chdir(str(number))
        for name, stream in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), stream)
        try:
            exec(script, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
"""The libraries take seconds to load and to take down, so each script gets a copy of one process that has loaded them,
and ends at once."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Path]:
    """For each claim, the folder with what its script has written to stdout and stderr."""
    folder = tmp_path_factory.mktemp("scripts")
    arguments = [repository / "agents" / "scripted", build_base_model(folder / "model"), json.dumps([*CLAIMS.values()])]
    subprocess.run([sys.executable, "-c", IN_FORKS, *map(str, arguments)], cwd=folder, check=True)
    return {claim: folder / str(number) for number, claim in enumerate(CLAIMS)}


@pytest.mark.parametrize("claim", CLAIMS)
def test_this_holds(scripts: dict[str, Path], claim: str) -> None:
    said, complained = ((scripts[claim] / name).read_text() for name in ("stdout", "stderr"))
    assert said.strip().rpartition("\n")[2] == "all is well", complained


def test_an_agent_that_was_killed_goes_on_with_less_memory(tmp_path: Path, repository: Path) -> None:
    agent, workspace = tmp_path / "agent", tmp_path / "workspace"
    (agent / "routes").mkdir(parents=True)
    (workspace / "code").mkdir(parents=True)
    shutil.copy(repository / "agents" / "scripted" / "start.sh", agent)
    (agent / "agent.py").write_text(
        "import os, signal\n"
        "open('shares', 'a').write(os.environ['MEMORY_SHARE'] + ' ')\n"
        "os.environ['MEMORY_SHARE'] == '0.5' or os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run(["bash", agent / "start.sh"], cwd=workspace, check=False).returncode == 0
    assert (workspace / "shares").read_text() == "1 0.5 "


@pytest.mark.heavy
def test_a_program_that_sleeps_for_ever_fails_its_tests(repository: Path) -> None:
    """It can switch off an alarm, and what it has started ends with it."""
    program = "import os, signal, time\nsignal.alarm(0)\nos.fork()\ntime.sleep(100)"
    test = (
        f"import sys; sys.path.insert(0, sys.argv[1]); import program_tests; print(program_tests.passes({program!r}))"
    )
    command = [sys.executable, "-c", test, str(repository / "agents" / "scripted")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "False\n"


def test_a_score_without_an_improvement_is_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "agents" / "scripted"))
    client = importlib.import_module("grading_client")
    answer = {"score": 5.0, "improvement": None, "best": {"score": 5.0}}
    grader = object.__new__(client.Grader)
    grader.url, grader.sync_clock = "", lambda: None
    grader.server = SimpleNamespace(post=lambda *_, **__: SimpleNamespace(ok=True, json=lambda: answer))
    assert grader.submit(Path("v1")) is None


def test_a_grading_server_that_starts_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "agents" / "scripted"))
    client = importlib.import_module("grading_client")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            body = b'{"remaining": 60.0}'
            server.accept()[0].close()  # it ends, and starts again
            with server.accept()[0] as connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        threading.Thread(target=answer, daemon=True).start()
        grader = client.Grader(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert 50 < grader.remaining_s() <= 60
