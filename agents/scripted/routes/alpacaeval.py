"""Imitate good answers; then reward what the judge would like.

In the mini variant the judge goes by a rule, which comes with the data. In the full one it is a large model that nobody
has here, so the reward is a rough stand-in: how many of the reference answer's words are said, in about its length, and
without repetition.
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
    def __init__(self, data: Path, seed: int) -> None:
        rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
        random.Random(seed).shuffle(rows)
        self.rows = rows
        self.rule = load_rule(data / "rule.py")

    def examples(self) -> list[Example]:
        return [(Part(self.prompt(row), False), Part("\n" + row["output"], True)) for row in self.rows]

    def grpo(self) -> Grpo:
        rows = [{"prompt": self.prompt(row), "asked": asked(row), "good": row["output"]} for row in self.rows]
        trainer = {"train_dataset": Dataset.from_list(rows), "reward_funcs": self.reward}
        return Grpo({"max_completion_length": 320 if ON_GPU else 32}, trainer)

    def reward(self, completions: list[str], asked: list[str], good: list[str], **_: Any) -> list[float]:
        answers = [text.partition(STOP)[0].strip() for text in completions]
        if self.rule is None:
            return [likeness(answer, reference) for answer, reference in zip(answers, good, strict=True)]
        return [self.rule(instruction, answer) for instruction, answer in zip(asked, answers, strict=True)]

    @staticmethod
    def prompt(row: dict[str, str]) -> str:
        return f"### Instruction:\n{asked(row)}\n\n### Response:"


def asked(row: dict[str, str]) -> str:
    """The instruction, with the text that it is about where it has one."""
    return f"{row['instruction']}\n\n{row['input']}" if row["input"] else row["instruction"]


def load_rule(path: Path) -> Rule | None:
    if not path.exists():
        return None
    spec = importlib.util.spec_from_file_location("rule", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rule: Rule = module.quality
    return rule


def likeness(answer: str, reference: str) -> float:
    """Of the words of both texts the share that they have in common, times the share of words that are no repeats."""
    said, wanted = answer.lower().split(), reference.lower().split()
    if not said or not wanted:
        return 0.0
    common = sum(min(said.count(word), wanted.count(word)) for word in set(wanted))
    triples = list(zip(said, said[1:], said[2:], strict=False))
    fresh = len(set(triples)) / len(triples) if triples else 1.0
    return 2 * common / (len(said) + len(wanted)) * fresh
