"""Imitate an expert that explores; then play the training games and reward the games won.

What the games answer is learned too, in one of two plays: to foresee it a model has to understand the room.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset

from routes import Example, Grpo, Part


class Route:
    MAX_STEPS = 30
    CROWDED = 10
    """Receptacles in a room from which on it pays to look first where a thing is likely to be."""

    def __init__(self, data: Path, seed: int) -> None:
        sys.path.insert(0, str(data))
        from alfred import Game

        games = {str(path): Game.load(path) for path in sorted((data / "train").rglob("game.tw-pddl"))}
        self.names = list(games)
        random.Random(seed).shuffle(self.names)
        self.games, self.seed = games, seed
        self.crowded = sum(len(game.receptacles) for game in games.values()) > self.CROWDED * len(games)

    def examples(self) -> list[Example]:
        return list(self.plays())

    def plays(self) -> Iterator[Example]:
        """The games that the expert wins, as texts to imitate."""
        from alfred import Expert, Play, play_out
        from alfred.transcript import opening, turn

        for place, name in enumerate(self.names):
            # In a small room it looks everywhere in order, which is easier to imitate.
            play, expert = Play(self.games[name]), Expert(homes=None if self.crowded else {})
            turns = play_out(play, expert, self.MAX_STEPS)
            if not play.won:
                continue
            parts = [Part(opening(play.intro), False)]
            for command, observation in turns:
                said, _, answered = turn(command, observation).partition("\n")
                parts += [Part(said + "\n", True), Part(answered, place % 2 == 0)]
            yield tuple(parts)

    def grpo(self) -> Grpo:
        from rollout import for_trl

        steps = 30 if self.crowded else 14  # the expert's longest plays, and a little more
        rollout = for_trl(self.games, max_steps=steps, max_invalid=3, temperature=1.0, seed=self.seed)
        rows = [{"prompt": name} for name in self.names]
        trainer = {"train_dataset": Dataset.from_list(rows), "reward_funcs": as_rolled_out, "rollout_func": rollout}
        return Grpo({}, trainer)


def as_rolled_out(reward: list[float], **_: Any) -> list[float]:
    return reward
