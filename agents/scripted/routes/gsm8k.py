"""Imitate worked solutions, or the model's own right ones; then a reward of 1 for the right number."""

import random
import re
from typing import Any

from routes import BaseRoute, Example, Part, Setting, rows_of


class Route(BaseRoute):
    """Learns to solve word problems."""

    def __init__(self, setting: Setting) -> None:
        from episodes import Until
        from final_number import QUESTION
        from prompts import shots_that_fit, worked_examples

        rows, shown = (rows_of(setting.data / name) for name in ("train.jsonl", "shots.jsonl"))
        self.rows = {str(number): row for number, row in enumerate(rows)}
        questions = [row["question"] for row in self.rows.values() if row not in shown]
        self.chat, self.faithful = setting.chat, setting.meta["options"]["prompts"] == "faithful"
        examples = worked_examples(shown, self.faithful)
        self.shots = shots_that_fit(examples, questions, self.chat, setting.room_after, setting.meta["max_new_tokens"])
        if not setting.small:
            # With worked examples, a text is seven times as long: without, it learns from more in the same time.
            self.with_examples = 0.1
        self.names = [name for name, row in self.rows.items() if row not in shown]
        random.Random(setting.seed).shuffle(self.names)
        self.play_settings = {"turns": Until(*(() if self.faithful else (QUESTION,)))}

    def prompt(self, name: str, shots: list[dict[str, Any]]) -> Any:
        """Returns the prompt that the grader uses, after some worked examples."""
        from prompts import prompt

        return prompt(self.rows[name]["question"], shots, self.chat)

    def shots_in_training(self, name: str) -> list[dict[str, Any]]:
        """Returns the worked examples before a question in training; there are none before most."""
        return self.shots if self.shows_examples(name) else []

    def example(self, name: str) -> Example:
        """Returns the worked solution."""
        from prompts import solution

        shots = self.shots_in_training(name)
        before = "" if self.chat else " " if shots else "\n"
        worked = solution(self.rows[name])
        if self.faithful:  # the reference does not understand separators of thousands
            worked = re.sub(r"(?<=\d),(?=\d{3})", "", worked)
        return Example(self.prompt(name, shots), [Part(before + worked, True)])

    def environment(self, name: str) -> Any:
        """Returns the question as it is graded."""
        return self.asked(name, self.shots)

    def plain(self, name: str) -> Any:
        """Returns the question without worked examples."""
        return self.asked(name, [])

    def practice(self, name: str) -> Any:
        """Returns the question for reinforcement."""
        return self.asked(name, self.shots_in_training(name))

    def asked(self, name: str, shots: list[dict[str, Any]]) -> Any:
        """Returns a question; an answer is worth 1 if its number is right, as the grader reads it."""
        from episodes import OneTurn
        from final_number import is_right, is_right_by_reference

        rule, gold = is_right_by_reference if self.faithful else is_right, self.rows[name]["answer"]
        return OneTurn(self.prompt(name, shots), lambda answer: float(rule(answer, gold)))
