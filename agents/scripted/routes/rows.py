"""Any task whose data is `train.jsonl` and `items.py`: imitate the answers that are given, then what is rewarded.

A task that has no route of its own is learned so; see a2rl/task_api/rows.py for what `items.py` says.
"""

import copy
import random
from typing import Any

from grading_client import log

from routes import BaseRoute, Example, Part, Setting, rows_of


class Attempt:
    """An episode that is over, and worth nothing, once the task's own code fails. A grade goes on then, too."""

    is_known = False
    """Whether the log says that it has failed."""

    def __init__(self, environment: Any) -> None:
        self.environment, self.prompt, self.done = environment, environment.prompt, environment.done
        self.reward, self.invalid, self.states, self.failed = 0.0, 0, list[Any](), False

    def write(self, turn: str) -> str:
        """Takes a turn, and returns what follows it."""
        played = self.environment
        try:
            answer: str = played.write(turn)
            self.done, self.reward, self.invalid = played.done, float(played.reward), played.invalid
            self.states = getattr(played, "states", [])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the task raises is its failure
            self.done, self.reward, self.states, self.failed, answer = True, 0.0, [], True, ""
            if not Attempt.is_known:
                log(f"the task's own code failed, which counts as a reward of 0: {type(error).__name__}: {error}")
            Attempt.is_known = True
        return answer


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
        return None if environment.failed else Example(prompt, parts)

    def environment(self, name: str) -> Any:
        """Returns a row as it is graded."""
        from episodes import OneTurn
        from rows import asked

        row = copy.deepcopy(self.rows[name])  # an environment may change its row
        if self.interactive:
            return Attempt(self.items.Environment(row))
        return Attempt(OneTurn(asked(self.items, row, self.chat), lambda answer: self.items.reward(row, answer)))
