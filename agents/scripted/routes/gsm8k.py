"""Imitate worked solutions; then a reward of 1 for the right number."""

import json
import random
import re
from pathlib import Path
from typing import Any

from datasets import Dataset

from routes import ON_GPU, Example, Grpo, Part


class Route:
    """Learns to solve word problems."""

    def __init__(self, data: Path, seed: int) -> None:
        rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
        random.Random(seed).shuffle(rows)
        self.rows = rows

    def examples(self) -> list[Example]:
        """Returns the worked solutions."""
        return [(Part(self.prompt(row), False), Part("\n" + row["answer"], True)) for row in self.rows]

    def grpo(self) -> Grpo:
        """Returns the questions and their reward."""
        rows = [{"prompt": self.prompt(row), "gold": final_number(row["answer"])} for row in self.rows]
        trainer = {"train_dataset": Dataset.from_list(rows), "reward_funcs": correct_number}
        return Grpo({"max_completion_length": 320 if ON_GPU else 96}, trainer)

    @staticmethod
    def prompt(row: dict[str, str]) -> str:
        """Returns the prompt that the grader uses."""
        return f"Question: {row['question']}\nLet's think step by step\nAnswer:"


def correct_number(completions: list[str], gold: list[str], **_: Any) -> list[float]:
    """A reward function of TRL's: 1 for the right number, else 0."""
    answers = [final_number(text.partition("Question:")[0]) for text in completions]
    return [float(answer == right) for answer, right in zip(answers, gold, strict=True)]


def final_number(text: str) -> str | None:
    """Returns the number after ####, or else the last number, as the grader does."""
    marked = re.search(r"####\s*(-?[\d,.]*\d)", text)
    numbers = [marked.group(1)] if marked else re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else None
