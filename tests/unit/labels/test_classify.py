"""Tests the labels of programs whose code is read: what trains counts, not what things are called."""

from pathlib import Path

import pytest

from a2rl.labels.commands import lines_of, started
from a2rl.labels.routes import in_words
from a2rl.labels.run_labels import classify
from tests.label_table import Rated, confusion, transcripts
from tests.labels.corpus import HALVES, half

LOOP = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(model.parameters())
for ids in torch.load("data.pt"):
    loss = model(ids, labels=ids).loss
    loss.backward()
    {step}
model.save_pretrained("output/v1")
"""


def route(text: str) -> str:
    return in_words(classify({"train.py": text}))


@pytest.mark.parametrize(("name", "most_wrong"), [("built_with", 2), ("held_back", 4)])
def test_nearly_all_labelled_programs_are_right_by_their_code(name: str, most_wrong: int) -> None:
    wrong = {each.name: found for each in half(name) if (found := in_words(classify(each.files))) != each.route}
    assert len(wrong) <= most_wrong, wrong


def test_at_least_60_programs_are_labelled_and_half_held_back() -> None:
    sizes = [len(half(name)) for name in HALVES]
    assert sum(sizes) >= 60
    assert min(sizes) >= 30


def test_a_loop_trains_only_if_the_optimizer_takes_a_step() -> None:
    assert route(LOOP.format(step="opt.step()")) == "SFT"
    assert route(LOOP.format(step="opt.zero_grad()")) == "copy"


def test_the_label_has_the_line_and_the_commit_that_show_it() -> None:
    [label] = classify({"train.py": LOOP.format(step="opt.step()")}, commit="abc")
    [evidence] = label.evidence
    assert (evidence.source, evidence.commit, evidence.file, evidence.line) == ("code", "abc", "train.py", 8)
    assert label.confidence > 0.5


def test_a_trainer_in_the_code_is_less_certain_than_a_traced_one() -> None:
    [label] = classify({"a.py": "from trl import DPOTrainer\nDPOTrainer('m').train()\n"})
    assert (label.route, label.confidence < 0.9) == ("DPO", True)


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    f()\nf()\n",
        "while True:\n    pass\n",
        "x = [" * 3000,
        "(" * 100_000,
        "a = lambda: a()\na()\n",
        "class A(A): pass\nA().train()\n",
        "import a\nfrom a import *\n",
        "x = 1\n" * 100_000,
        "f = lambda g: g(g)\nf(f)\n",
        "x = '" + "y" * 300_000 + "'\n" + "x = x + x\n" * 50,
        "\x00",
    ],
)
def test_hostile_code_has_a_label_soon(text: str) -> None:
    assert in_words(classify({"a.py": text})) in {"unknown", "copy"}


def test_a_class_named_like_a_trainer_is_followed_to_its_base() -> None:
    assert route("from trl import SFTTrainer\nclass PPOTrainer(SFTTrainer): pass\nPPOTrainer('m').train()\n") == "SFT"


def test_commands_of_a_shell_script_are_split_as_a_shell_does() -> None:
    script = "# comment\nA=1 python x.py --a 'b && c' && \\\n  bash y.sh; cp -r $MODEL_PATH out\n"
    assert list(lines_of(script)) == [
        ["A=1", "python", "x.py", "--a", "b && c"],
        ["bash", "y.sh"],
        ["cp", "-r", "$MODEL_PATH", "out"],
    ]


@pytest.mark.parametrize(
    ("command", "route"),
    [
        ("torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer", "SFT"),
        ("python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo", "GRPO"),
        ("python -m verl.trainer.main_ppo", "PPO"),
        ("trl dpo --model_name_or_path m", "DPO"),
        ("accelerate launch -m openrlhf.cli.train_dpo", "DPO"),
        ("swift rlhf --rlhf_type grpo", "GRPO"),
        ("mergekit-yaml a.yaml out", "merge"),
        ("ls -l", None),
    ],
)
def test_tools_that_train_by_themselves_are_known(command: str, route: str | None) -> None:
    assert started(command.split(), {}).route == route


def test_the_recorded_agents_trained_nothing() -> None:
    rows = transcripts()
    assert len(rows) == 7
    assert {each.found for each in rows} == {"unknown"}


def test_a_missing_step_of_a_chain_is_counted_as_missing() -> None:
    pairs = confusion([Rated("x", "SFT > GRPO", "GRPO")])
    assert pairs == {("SFT", "(none)"): 1, ("GRPO", "GRPO"): 1}


def test_the_scripted_agent_imitates_and_then_reinforces(repository: Path) -> None:
    folder = repository / "agents" / "scripted"
    files = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    assert in_words(classify(files, [["python", "code/agent.py"]])).endswith("SFT > online RL")


def test_a_command_of_one_endless_word_is_not_read() -> None:
    assert list(lines_of("x" * 400_000 + "\npython train.py")) == [["python", "train.py"]]


def test_a_trainer_behind_a_mixin_is_found() -> None:
    program = (
        "from trl import DPOTrainer\nclass Cheaper:\n    pass\nclass Mine(Cheaper, DPOTrainer):\n    pass\n"
        "trainer = Mine()\ntrainer.train()\n"
    )
    assert in_words(classify({"train.py": program}, [["python", "train.py"]])) == "DPO"
