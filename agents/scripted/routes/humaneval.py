"""Imitate the reference solutions, or the model's own right ones; then a reward of 1 for a program that passes."""

import random
from typing import Any

from program_tests import TestRunner

from routes import BaseRoute, Example, Part, Setting, rows_of


class Route(BaseRoute):
    """Learns to complete functions."""

    def __init__(self, setting: Setting) -> None:
        from episodes import Until
        from program import STOPS

        self.rows = {row["task_id"]: row for row in rows_of(setting.data / "train.jsonl")}
        self.names = list(self.rows)
        random.Random(setting.seed).shuffle(self.names)
        self.chat, self.faithful = setting.chat, setting.meta["options"]["prompts"] == "faithful"
        self.in_words, self.tests = self.chat or self.faithful, TestRunner()
        self.play_settings = {"turns": Until(*(() if self.in_words else STOPS))}

    def prompt(self, name: str) -> Any:
        """Returns the prompt that the grader uses."""
        from prompts import prompt

        return prompt(self.rows[name]["prompt"], self.chat, self.faithful)

    def example(self, name: str) -> Example:
        """Returns the reference solution; where it is asked for in words, the whole function in a code block."""
        row = self.rows[name]
        whole = f"```python\n{row['prompt']}{row['canonical_solution']}```"
        return Example(self.prompt(name), [Part(whole if self.in_words else row["canonical_solution"], True)])

    def environment(self, name: str) -> Any:
        """Returns the beginning of a program; the rest is worth 1 if it passes the tests, as the grader reads it."""
        from episodes import OneTurn
        from program import faithful_program, program

        row, rule = self.rows[name], faithful_program if self.faithful else program

        def grade(answer: str) -> float:
            made = rule(row["prompt"], row["entry_point"], answer)
            return float(self.tests.passes(f"{made}\n{row['test']}\ncheck({row['entry_point']})"))

        return OneTurn(self.prompt(name), grade)
