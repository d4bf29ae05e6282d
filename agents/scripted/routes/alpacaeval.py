"""Imitate good answers; then reward what the judge would prefer.

In the mini variant the judge applies a rule, which comes with the data. In the full variant it is a large model that
the agent cannot call, so the reward is an approximation: the overlap of words with the reference answer, with a penalty
for repetition.
"""

import random
from typing import Any

from routes import BaseRoute, Example, Part, Setting, rows_of


class Route(BaseRoute):
    """Learns to follow instructions."""

    def __init__(self, setting: Setting) -> None:
        from episodes import Until
        from prompts import STOP

        self.rows = {str(number): row for number, row in enumerate(rows_of(setting.data / "train.jsonl"))}
        self.names = list(self.rows)
        random.Random(setting.seed).shuffle(self.names)
        self.chat = setting.chat
        self.has_rule = (setting.data / "rule.py").exists()
        self.play_settings = {"turns": Until(STOP)}

    def instruction(self, name: str) -> str:
        """Returns the instruction with its input, if it has one."""
        row = self.rows[name]
        return f"{row['instruction']}\n\n{row['input']}" if row["input"] else row["instruction"]

    def prompt(self, name: str) -> Any:
        """Returns the prompt that the grader uses."""
        from prompts import prompt

        return prompt(self.instruction(name), self.chat)

    def example(self, name: str) -> Example:
        """Returns the reference answer."""
        before = "" if self.chat else "\n"
        return Example(self.prompt(name), [Part(before + self.rows[name]["output"], True)])

    def environment(self, name: str) -> Any:
        """Returns the instruction; an answer is worth what the rule says, or its similarity to the reference."""
        from episodes import OneTurn
        from model_text import answer_of

        def worth(text: str) -> float:
            answer = answer_of(text).strip()  # as the judge sees it
            if not self.has_rule:
                return similarity(answer, self.rows[name]["output"])
            from rule import quality

            return float(quality(self.instruction(name), answer))

        return OneTurn(self.prompt(name), worth)


def similarity(answer: str, reference: str) -> float:
    """Returns the F1 of the words, times the share of distinct three-word sequences in the answer."""
    said, wanted = answer.lower().split(), reference.lower().split()
    if not said or not wanted:
        return 0.0
    common = sum(min(said.count(word), wanted.count(word)) for word in set(wanted))
    triples = list(zip(said, said[1:], said[2:], strict=False))
    distinct = len(set(triples)) / len(triples) if triples else 1.0
    return 2 * common / (len(said) + len(wanted)) * distinct
