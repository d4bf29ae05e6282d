"""Imitate an expert that explores; then play the training games and reward the games won.

What imitation leaves: a model that has taken what is not there, or gone where it is, does it again and again, since it
has only ever seen perfect play. Such a turn is answered "Nothing happens.", and rollouts go on after it for a while, so
that trial and error finds what helps.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from routes import CORES, Example, Grpo, Part


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
        return [parts for name in self.names if (parts := self.play(self.games[name]))]

    def play(self, game: Any) -> Example:
        """A game as a text to imitate; nothing where the expert does not win it in time."""
        from alfred import Expert, Play
        from alfred.transcript import opening, turn

        # In a small room it looks everywhere in order, and once more for a lamp, which is easier to imitate.
        play, expert = Play(game), Expert() if self.crowded else Expert(homes={}, rounds=True)
        observation = play.intro
        parts = [Part(opening(play.intro), False)]
        for _ in range(self.MAX_STEPS):
            command = expert.act(observation, play.admissible())
            observation = play.step(command)
            said, _, answered = turn(command, observation).partition("\n")
            parts += [Part(said + "\n", True), Part(answered, False)]
            if play.won:
                return tuple(parts)
        return ()

    def grpo(self) -> Grpo:
        from rollout import for_trl

        steps = 30 if self.crowded else 20  # the expert's longest plays, and a few mistakes
        play = for_trl(self.games, max_steps=steps, max_invalid=5, temperature=1.0, seed=self.seed, processes=CORES)
        practice = Practice(self.games, self.names, self.seed)

        def rollout(places: list[str], trainer: Any) -> dict[str, Any]:
            names = [practice.game_at(place) for place in places]
            columns = play(names, trainer)
            practice.played(names, columns["reward"])
            return columns

        return Grpo.of_episodes(self.names, rollout, sft_share=0.15)


class Practice:
    """Which game is played at which place of the data set: mostly one of the kinds that are won now and lost then.

    A game that is always won, or never, teaches GRPO nothing: all its episodes are worth the same.
    """

    MEMORY = 0.98
    """How much an earlier episode of the kind still counts, for each one after it."""

    def __init__(self, games: dict[str, Any], names: Iterable[str], seed: int) -> None:
        self.games, self.random = games, random.Random(seed)
        self.waiting: dict[str, list[str]] = defaultdict(list)
        for name in names:
            self.waiting[games[name].kind].append(name)
        self.won = {kind: 0.5 for kind in self.waiting}
        self.chosen: dict[str, str] = {}

    def game_at(self, place: str) -> str:
        """The same game for the whole group."""
        if place not in self.chosen:
            kinds = list(self.waiting)
            kind = self.random.choices(kinds, [max(0.02, self.won[kind] * (1 - self.won[kind])) for kind in kinds])[0]
            self.chosen[place] = self.waiting[kind][0]
            self.waiting[kind].append(self.waiting[kind].pop(0))
        return self.chosen[place]

    def played(self, names: list[str], rewards: list[float]) -> None:
        for name, reward in zip(names, rewards, strict=True):
            kind = self.games[name].kind
            self.won[kind] += (1 - self.MEMORY) * (reward - self.won[kind])
