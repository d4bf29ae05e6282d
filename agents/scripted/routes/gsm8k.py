"""Imitate worked solutions, or the model's own right ones; then a reward of 1 for the right number."""

import random
from typing import Any

from routes import BaseRoute, Example, Part, Setting, rows_of


class Route(BaseRoute):
    """Learns to solve word problems."""

    def __init__(self, setting: Setting) -> None:
        from episodes import Until
        from prompts import shots_that_fit

        rows, shown = (rows_of(setting.data / name) for name in ("train.jsonl", "shots.jsonl"))
        self.rows = {str(number): row for number, row in enumerate(rows)}
        questions = [row["question"] for row in self.rows.values() if row not in shown]
        new_tokens = setting.meta["max_new_tokens"]
        self.chat = setting.chat
        self.shots = shots_that_fit(shown, questions, self.chat, setting.room_after, new_tokens)
        self.names = [name for name, row in self.rows.items() if row not in shown]
        random.Random(setting.seed).shuffle(self.names)
        self.play_settings = {"max_steps": 1, "max_new_tokens": min(new_tokens, 320), "turns": Until("Question:")}

    def prompt(self, name: str) -> Any:
        """Returns the prompt that the grader uses."""
        from prompts import prompt

        return prompt(self.rows[name]["question"], self.shots, self.chat)

    def example(self, name: str) -> Example:
        """Returns the worked solution."""
        from prompts import solution

        before = "" if self.chat else " " if self.shots else "\n"
        return Example(self.prompt(name), [Part(before + solution(self.rows[name]), True)])

    def environment(self, name: str) -> Any:
        """Returns the question; an answer is worth 1 if its number is right, as the grader reads it."""
        from episodes import OneTurn
        from final_number import final_number

        right = final_number(self.rows[name]["answer"])

        def grade(answer: str) -> float:
            number = final_number(answer)
            return float(number is not None and abs(number - right) < 1e-6)

        return OneTurn(self.prompt(name), grade)
