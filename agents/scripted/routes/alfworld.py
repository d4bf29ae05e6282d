"""Imitate an expert that explores; then play the training games and reward the games won.

Imitation has a weakness: a model that has only seen perfect play repeats an invalid command again and again, such as
taking what is not there. Such a turn is answered "Nothing happens.", and rollouts continue after it for a few turns, so
that reinforcement learning finds out what helps.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from routes import CORES, Example, Grpo, Part


class Route:
    """Learns to play the training games."""

    MAX_STEPS = 30
    MANY_RECEPTACLES = 10
    """With more receptacles in a room on average, the expert looks first where an object is likely to be."""

    def __init__(self, data: Path, seed: int) -> None:
        sys.path.insert(0, str(data))
        from alfred import Game

        games = {str(path): Game.load(path) for path in sorted((data / "train").rglob("game.tw-pddl"))}
        self.names = list(games)
        random.Random(seed).shuffle(self.names)
        self.games, self.seed = games, seed
        self.many_receptacles = sum(len(game.receptacles) for game in games.values()) > self.MANY_RECEPTACLES * len(
            games
        )

    def examples(self) -> list[Example]:
        """Returns the games that the expert wins."""
        return [parts for name in self.names if (parts := self.play(self.games[name]))]

    def play(self, game: Any) -> Example:
        """Returns a game as a text to imitate; an empty tuple where the expert does not win it in time."""
        from alfred import Expert, Play
        from alfred.transcript import opening, turn

        # In a small room it looks everywhere in order, twice where it needs a lamp: that is easier to imitate.
        play, expert = Play(game), Expert() if self.many_receptacles else Expert(homes={}, rounds=True)
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
        """Returns rollouts of games, rewarded with 1 if won."""
        from rollout import for_trl

        steps = 30 if self.many_receptacles else 20  # the expert's longest games, and room for a few mistakes
        play = for_trl(self.games, max_steps=steps, max_invalid=5, temperature=1.0, seed=self.seed, processes=CORES)
        schedule = GameSchedule(self.games, self.names, self.seed)

        def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
            names = [schedule.game_for(prompt) for prompt in prompts]
            columns: dict[str, Any] = play(names, trainer)
            schedule.record(names, columns["reward"])
            return columns

        return Grpo.of_episodes(self.names, rollout, sft_share=0.15)


class GameSchedule:
    """Chooses a game for each prompt: mostly one of the kinds that are won in some episodes and lost in others.

    A game that is always won, or never, teaches GRPO nothing, because all its episodes have the same reward.
    """

    DECAY = 0.98
    """Factor by which an episode counts less towards the win rate of its kind, for each later one of the kind."""

    def __init__(self, games: dict[str, Any], names: Iterable[str], seed: int) -> None:
        self.games, self.random = games, random.Random(seed)
        self.waiting: dict[str, list[str]] = defaultdict(list)
        for name in names:
            self.waiting[games[name].kind].append(name)
        self.win_rate = {kind: 0.5 for kind in self.waiting}
        self.chosen: dict[str, str] = {}

    def game_for(self, prompt: str) -> str:
        """Returns the name of a game; the same one for all rollouts of a prompt, which form a group."""
        if prompt not in self.chosen:
            kinds = list(self.waiting)
            kind = self.random.choices(
                kinds, [max(0.02, self.win_rate[kind] * (1 - self.win_rate[kind])) for kind in kinds]
            )[0]
            self.chosen[prompt] = self.waiting[kind][0]
            self.waiting[kind].append(self.waiting[kind].pop(0))
        return self.chosen[prompt]

    def record(self, names: list[str], rewards: list[float]) -> None:
        """Updates the win rates."""
        for name, reward in zip(names, rewards, strict=True):
            kind = self.games[name].kind
            self.win_rate[kind] += (1 - self.DECAY) * (reward - self.win_rate[kind])
