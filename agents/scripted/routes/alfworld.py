"""Imitate an expert that explores; then play the training games and reward the games won.

The expert's plays are spoilt here and there by a mistake, which is not imitated: what is learned is how to go on after
one. A model that has only ever seen perfect play does not recover, and trial and error then has little to reward.
"""

import random
import sys
from pathlib import Path
from typing import Any

from routes import Example, Grpo, Part


class Route:
    MAX_STEPS = 30
    MISTAKES = 0.1
    """In what share of the turns."""
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
        rng = random.Random(self.seed)
        return [parts for name in self.names if (parts := self.play(self.games[name], rng))]

    def play(self, game: Any, rng: random.Random) -> Example:
        """A game as a text to imitate; nothing where the expert does not win it in time."""
        from alfred import Expert, Play
        from alfred.transcript import opening, turn

        # In a small room it looks everywhere in order, which is easier to imitate.
        play, expert = Play(game), Expert(homes=None if self.crowded else {})
        place, observation = game.receptacles[0].name, play.intro
        parts = [Part(opening(play.intro), False)]
        for _ in range(self.MAX_STEPS):
            command = right = expert.act(observation, play.admissible())
            if rng.random() < self.MISTAKES:
                command = self.mistake(play, place, rng)
            observation = play.step(command)
            place = command.removeprefix("go to ") if command.startswith("go to ") else place
            said, _, answered = turn(command, observation).partition("\n")
            parts += [Part(said + "\n", command == right), Part(answered, False)]
            if play.won:
                return tuple(parts)
        return ()

    @staticmethod
    def mistake(play: Any, place: str, rng: random.Random) -> str:
        """Mostly what beginners do, take the thing wanted where it is not; else anything that can be done."""
        from alfred.expert import read_goal

        wanted = read_goal(play.game.goal_text).thing
        if rng.random() < 0.8:
            return f"take {wanted} {rng.randint(1, 2)} from {place}"
        return str(rng.choice(play.admissible()))

    def grpo(self) -> Grpo:
        from rollout import for_trl

        steps = 30 if self.crowded else 16  # the expert's longest plays, and a few mistakes
        rollout = for_trl(self.games, max_steps=steps, max_invalid=3, temperature=1.0, seed=self.seed)
        return Grpo.of_episodes(self.names, rollout)
