"""Tests what follows from the notes that programs made of their training, together with their code."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from a2rl.labels.records import in_words
from a2rl.labels.traces import read_trace
from tests.label_table import Rated, confusion
from tests.labels.traced_programs import run_programs, traced_chain

LOOP = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(model.parameters())
for ids in torch.load("data.pt"):
    model(ids, labels=ids).loss.backward()
    opt.step()
"""
FILE = "/runs/x/workspace/code/train.py"


def train(name: str, at: float, process: str = "1", **more: Any) -> dict[str, Any]:
    return {"event": "train", "t": at, "process": process, "classes": [f"trl.{name}", "transformers.Trainer"], **more}


def trained(at: float, steps: int | None = 5, process: str = "1", failed: bool = False) -> dict[str, Any]:
    return {"event": "trained", "t": at, "process": process, "steps": steps, "failed": failed}


def work(
    at: float, steps: int, generations: int = 0, turns: int = 0, process: str = "1", **place: Any
) -> dict[str, Any]:
    where = {"file": FILE, "function": "<module>", "line": 8, **place}
    taken = [{**where, "count": steps}] if steps else []
    counts = {"generations": generations, "turns": turns, "steps": taken}
    return {"event": "work", "t": at, "process": process, "since": at - 1, **counts}


def checkpoint(event: str, at: float, path: str, process: str = "1") -> dict[str, Any]:
    return {"event": event, "t": at, "process": process, "path": path}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "training.jsonl"


def write(file: Path, *lines: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def route(file: Path, *lines: dict[str, Any], code: str = LOOP) -> str:
    return in_words(traced_chain(write(file, *lines), {"train.py": code}))


def test_the_class_of_a_trainer_is_that_of_the_library(file: Path) -> None:
    """It does not matter what the program calls its own."""
    line = train("", 1.0) | {"classes": ["__main__.PPOTrainer", "trl.SFTTrainer", "transformers.Trainer"]}
    assert route(file, line, trained(2.0)) == "SFT"
    assert (
        route(file, line | {"classes": ["train.UnslothGRPOTrainer", "unsloth.UnslothGRPOTrainer"]}, trained(2.0))
        == "GRPO"
    )


def test_a_model_of_rewards_is_no_part_of_the_route(file: Path) -> None:
    assert route(file, train("RewardTrainer", 1.0), trained(2.0), train("GRPOTrainer", 3.0), trained(4.0)) == "GRPO"


def test_a_trainer_that_took_no_step_trained_nothing(file: Path) -> None:
    assert route(file, train("DPOTrainer", 1.0), trained(2.0, steps=0, failed=True)) == "unknown"
    assert route(file, train("DPOTrainer", 1.0), trained(2.0, steps=None)) == "DPO"


def test_an_unknown_number_of_steps_is_not_told(file: Path) -> None:
    [label] = traced_chain(write(file, train("RayPPOTrainer", 1.0), trained(2.0, steps=None)), {})
    assert [each.what for each in label.evidence] == ["RayPPOTrainer"]
    [label] = traced_chain(write(file, train("RayPPOTrainer", 1.0), trained(2.0, steps=5)), {})
    assert [each.what for each in label.evidence] == ["RayPPOTrainer, 5 steps"]


def test_a_killed_trainer_has_the_steps_that_were_counted(file: Path) -> None:
    assert route(file, train("GRPOTrainer", 1.0), work(5.0, 3, 4, 3)) == "GRPO"
    [found] = read_trace(file).works
    assert (found.began, found.ended, found.steps) == (1.0, 5.0, 3)


def test_alternating_steps_and_generations_are_no_imitation(file: Path) -> None:
    """Steps alone imitate."""
    bare = "import magic\nmagic.learn()\n"
    assert route(file, work(2.0, 100), code=bare) == "SFT"
    assert route(file, work(2.0, 100, 100, 100), code=bare) == "unknown"


def test_what_was_traced_decides_whether_a_loop_generates(file: Path) -> None:
    rounds = LOOP.replace("for ids in torch.load('data.pt')", "for ids in kept").replace(
        "for ids", "kept = []\nfor text in map(tok.decode, model.generate(x)):\n    if len(text) > 3:\n"
        "        kept.append(text)\nfor ids"
    )  # fmt: skip
    assert route(file, work(2.0, 0, 50), work(3.0, 50, line=12), code=rounds) == "rejection sampling"
    assert route(file, work(3.0, 50, line=12), code=rounds) == "SFT"


def test_other_loops_are_other_phases_and_processes_are_separate(file: Path) -> None:
    lines = [work(2.0, 9), work(3.0, 9), work(4.0, 9, function="improve"), work(2.5, 9, process="2")]
    found = read_trace(write(file, *lines)).works
    assert [(each.process, each.steps) for each in found] == [("1", 18), ("2", 9), ("1", 9)]


def test_only_what_led_to_a_checkpoint_counts_for_it(file: Path) -> None:
    saved = "/runs/x/workspace/output"
    lines = [
        *(train("SFTTrainer", 1.0, "1"), trained(2.0, process="1"), checkpoint("saved", 2.1, f"{saved}/sft", "1")),
        *(train("DPOTrainer", 3.0, "2"), trained(4.0, process="2"), checkpoint("saved", 4.1, f"{saved}/dpo", "2")),
        *(checkpoint("loaded", 5.0, f"{saved}/sft", "3"), train("GRPOTrainer", 5.1, "3"), trained(6.0, process="3")),
        checkpoint("saved", 6.1, f"{saved}/v1/model.safetensors", "3"),
    ]
    trace = read_trace(write(file, *lines))
    for path in ("output/v1", "./output/v1", "output/v1/.", "output//v1", "output/sft/../v1/"):
        assert [work.process for work in trace.before(path, 9.0)] == ["1", "3"]
    assert [work.process for work in trace.before(f"{saved}/dpo", 9.0)] == ["2"]
    assert [work.process for work in trace.before("output/unknown", 5.05)] == ["1", "2"]


def test_notes_of_many_loads_of_many_checkpoints_take_no_time(file: Path) -> None:
    lines = [checkpoint("saved", 1.0 + number, f"/w/output/{number}") for number in range(400)]
    lines += [checkpoint("loaded", 1.0 + number, f"output/{number}") for number in range(400)]
    trace = read_trace(write(file, work(2.0, 3), *lines))
    begun = time.process_time()
    assert [each.steps for each in trace.before("output/399", 999.0)] == [3]
    assert time.process_time() - begun < 3


def test_a_checkpoint_can_be_made_of_itself(file: Path) -> None:
    around = [checkpoint(event, at, "/w/output/v1") for at in (4.0, 5.0) for event in ("saved", "loaded")]
    assert read_trace(write(file, work(2.0, 3), *around)).before("output/v1", 9.0)[0].steps == 3


def test_an_adapter_that_is_merged_into_its_model_is_no_merge(file: Path) -> None:
    merged = {"event": "merged", "t": 3.0, "process": "1", "how": "merge_and_unload"}
    assert route(file, train("SFTTrainer", 1.0), trained(2.0), merged) == "SFT"
    assert route(file, train("SFTTrainer", 1.0), trained(2.0), merged | {"how": "run_merge"}) == "SFT > merge"


def test_lines_that_are_no_notes_are_left_out(file: Path) -> None:
    good = json.dumps(train("KTOTrainer", 1.0)).encode() + b"\n" + json.dumps(trained(2.0)).encode() + b"\n"
    bad = [
        b"",
        b"[]",
        b"7",
        b"{",
        b"\xff",
        b'{"event": "train"}',
        b'{"event": "work", "t": NaN, "process": "1"}',
        b"[" * 9000,
    ]
    file.write_bytes(b"\n".join(bad) + b"\n" + good + good[:-30])
    assert in_words(traced_chain(file, {})) == "DPO"


def test_a_missing_file_and_a_folder_show_nothing(file: Path) -> None:
    assert read_trace(file).works == []
    file.mkdir()
    assert read_trace(file).works == []


@pytest.mark.slow
def test_all_programs_under_the_tracer_have_the_right_chain(tmp_path: Path) -> None:
    ran = run_programs(tmp_path)
    assert len(ran) == 20
    assert {each.name: in_words(chain) for each, chain in ran} == {each.name: each.route for each, _ in ran}


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    f()\nf()\n",
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
def test_hostile_code_leaves_what_was_traced(file: Path, code: str) -> None:
    assert route(file, work(2.0, 9), code=code) == "SFT"


def test_the_scripted_agent_imitates_and_then_reinforces(file: Path, repository: Path) -> None:
    """Its trainers are those of TRL with losses of their own."""
    folder = repository / "agents" / "scripted"
    files = {f"code/{path.relative_to(folder)}": path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    code = files["code/training.py"].splitlines()
    own: dict[str, Any] = {"file": "/runs/x/workspace/code/training.py", "has_own_loss": True}
    sft, grpo = (place for place, line in enumerate(code, 1) if "trainer.train(" in line)
    lines = [
        *(train("SFTTrainer", 1.0, line=sft, **own), trained(2.0)),
        *(train("GRPOTrainer", 3.0, line=grpo, settings=["rollout_func"], **own), trained(4.0)),
    ]
    assert in_words(traced_chain(write(file, *lines), files)) == "SFT > online RL"


def test_a_missing_step_of_a_chain_is_counted_as_missing() -> None:
    pairs = confusion([Rated("x", "SFT > GRPO", "GRPO")])
    assert pairs == {("SFT", "(none)"): 1, ("GRPO", "GRPO"): 1}
