"""Imitate good answers; then reward what the judge would prefer.

In the mini variant the judge applies a rule, which comes with the data. In the full variant it is a large model that
the agent cannot call, so the reward is an approximation: the overlap of words with the reference answer, with a penalty
for repetition.
"""

import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset

from routes import ON_GPU, Example, Grpo, Part

Rule = Callable[[str, str], float]
STOP = "### Instruction:"


class Route:
    """Learns to follow instructions."""

    def __init__(self, data: Path, seed: int) -> None:
        rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
        random.Random(seed).shuffle(rows)
        self.rows = rows
        self.rule = load_rule(data / "rule.py")

    def examples(self) -> list[Example]:
        """Returns the reference answers."""
        return [(Part(self.prompt(row), False), Part("\n" + row["output"], True)) for row in self.rows]

    def grpo(self) -> Grpo:
        """Returns the instructions and their reward."""
        rows = [{"prompt": self.prompt(row), "asked": instruction_of(row), "good": row["output"]} for row in self.rows]
        trainer = {"train_dataset": Dataset.from_list(rows), "reward_funcs": self.reward}
        return Grpo({"max_completion_length": 320 if ON_GPU else 32}, trainer)

    def reward(self, completions: list[str], asked: list[str], good: list[str], **_: Any) -> list[float]:
        """Rewards answers by the judge's rule, or else by their similarity to the reference answer."""
        answers = [text.partition(STOP)[0].strip() for text in completions]
        if self.rule is None:
            return [similarity(answer, reference) for answer, reference in zip(answers, good, strict=True)]
        return [self.rule(instruction, answer) for instruction, answer in zip(asked, answers, strict=True)]

    @staticmethod
    def prompt(row: dict[str, str]) -> str:
        """Returns the prompt that the grader uses."""
        return f"### Instruction:\n{instruction_of(row)}\n\n### Response:"


def instruction_of(row: dict[str, str]) -> str:
    """Returns the instruction with its input, if it has one."""
    return f"{row['instruction']}\n\n{row['input']}" if row["input"] else row["instruction"]


def load_rule(path: Path) -> Rule | None:
    """Returns the judge's rule, or None where the data has none."""
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("rule", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rule: Rule = module.quality
    return rule


def similarity(answer: str, reference: str) -> float:
    """Returns the F1 of the words, times the share of distinct three-word sequences in the answer."""
    said, wanted = answer.lower().split(), reference.lower().split()
    if not said or not wanted:
        return 0.0
    common = sum(min(said.count(word), wanted.count(word)) for word in set(wanted))
    triples = list(zip(said, said[1:], said[2:], strict=False))
    distinct = len(set(triples)) / len(triples) if triples else 1.0
    return 2 * common / (len(said) + len(wanted)) * distinct
