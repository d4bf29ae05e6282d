"""Any task whose data is `train.jsonl` and `items.py`: imitate the answers that are given, then what is rewarded.

A task that has no route of its own is learned so; see a2rl/task_api/rows.py for what `items.py` says.
"""

import copy
import random
from typing import Any

from routes import BaseRoute, Example, Part, Setting, rows_of


class Route(BaseRoute):
    """Learns from the rows of the training data."""

    def __init__(self, setting: Setting) -> None:
        import items
        from episodes import LINES, Until
        from rows import is_interactive, stops

        self.rows = {str(number): row for number, row in enumerate(rows_of(setting.data / "train.jsonl"))}
        self.names = list(self.rows)
        random.Random(setting.seed).shuffle(self.names)
        self.items, self.chat, self.interactive = items, setting.chat, is_interactive(items)
        self.play_settings = {"turns": LINES if self.interactive else Until(*stops(items))}

    def example(self, name: str) -> Example | None:
        """Returns the right answer, or an episode that is played as the data says; None where it says nothing."""
        from rows import gold

        right = gold(self.items, self.rows[name])
        if right is None:
            return None
        environment = self.environment(name)
        prompt, parts = environment.prompt, list[Part]()
        if not self.interactive:
            space = isinstance(prompt, str) and not prompt[-1:].isspace()
            return Example(prompt, [Part(" " * space + right, True)])
        for turn in right.splitlines():
            parts += [Part(f" {turn}\n", True), Part(environment.write(turn), False)]
        return Example(prompt, parts)

    def environment(self, name: str) -> Any:
        """Returns a row as it is graded."""
        from episodes import OneTurn
        from rows import asked

        row = copy.deepcopy(self.rows[name])  # an environment may change its row
        if self.interactive:
            return self.items.Environment(row)
        return OneTurn(asked(self.items, row, self.chat), lambda answer: float(self.items.reward(row, answer)))
