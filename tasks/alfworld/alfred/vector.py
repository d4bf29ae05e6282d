"""Plays many episodes at once."""

from collections.abc import Sequence
from typing import NamedTuple

from .game import Game
from .play import Play


class Step(NamedTuple):
    """The answer of a game."""

    observation: str
    reward: float
    """1.0 on the step that wins, else 0.0."""
    done: bool
    won: bool
    admissible: list[str]
    """The commands that have an effect next."""


class VectorEnv:
    """Plays any number of games, each up to `max_steps` commands.

    env = VectorEnv()
    intros = env.reset(games)
    steps = env.step(["look"] * len(games))
    """

    def __init__(self, max_steps: int = 50) -> None:
        self.max_steps = max_steps
        self.plays: list[Play] = []
        self.steps: list[Step] = []
        """The last answer of each game."""

    def reset(self, games: Sequence[Game]) -> list[str]:
        """Starts a play of each game, and returns the intros."""
        self.plays = [Play(game) for game in games]
        self.steps = [Step(play.intro, 0.0, False, play.won, play.admissible()) for play in self.plays]
        return [step.observation for step in self.steps]

    def step(self, commands: Sequence[str | None]) -> list[Step]:
        """Takes a command for each game; None, or a game that is done, repeats the last answer with reward 0."""
        rows = zip(self.plays, self.steps, commands, strict=True)
        self.steps = [
            last._replace(reward=0.0) if last.done or command is None else self._step(play, command)
            for play, last, command in rows
        ]
        return self.steps

    def _step(self, play: Play, command: str) -> Step:
        observation = play.step(command)
        done = play.won or play.steps >= self.max_steps
        return Step(observation, float(play.won), done, play.won, play.admissible())
