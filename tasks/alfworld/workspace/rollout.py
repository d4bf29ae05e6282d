"""Plays many games at once with a model that is being trained: the rollouts of online RL.

The agent gets this file beside `alfred/` (the games), `episodes.py` and `decoder.py` (batched episodes). `for_trl`
makes of it what TRL's GRPOTrainer takes as `rollout_func`.

    from alfred import Game, find_games
    from rollout import play_games

    episodes = play_games(model, tokenizer, [Game.load(path) for path in find_games("data/train")], temperature=1.0)
    print(sum(episode.won for episode in episodes) / len(episodes))
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import episodes
from alfred import Game, Play
from alfred.transcript import opening
from alfred.wording import NOTHING_HAPPENS


class Room:
    """A game as an environment; see `episodes.Environment`."""

    def __init__(self, game: Game) -> None:
        self.game, self.play = game, Play(game)
        self.prompt = opening(self.play.intro)
        self.invalid = 0
        self.states: list[Hashable] = []
        """Before each turn."""

    @property
    def done(self) -> bool:
        return self.play.won

    @property
    def reward(self) -> float:
        return float(self.play.won)

    def write(self, line: str) -> str:
        self.states.append(self.play.state)
        observation = self.play.step(line)
        self.invalid += observation == NOTHING_HAPPENS
        return observation + ("" if self.play.won else "\n>")


class Episode(episodes.Episode):
    """A game as the model played it."""

    @property
    def game(self) -> Game:
        return self.environment.game

    @property
    def commands(self) -> list[str]:
        return self.turns

    @property
    def won(self) -> bool:
        return self.environment.done


def play_games(model: Any, tokenizer: Any, games: Sequence[Game], **settings: Any) -> list[Episode]:
    """One episode for each game; the same game may be there several times. `settings`: see `episodes.play`."""
    played = episodes.play(model, tokenizer, [Room(game) for game in games], **settings)
    return [Episode(**vars(episode)) for episode in played]


def for_trl(
    games: Mapping[str, Game],
    reward: Callable[[Episode], float] = lambda episode: float(episode.won),
    **settings: Any,
) -> Callable[[list[str], Any], dict[str, Any]]:
    """A `rollout_func`. Prompts of the data set are the names of the games; see `episodes.for_trl`. The column `states`
    has the state of the game before each turn.

    GRPOTrainer(..., train_dataset=Dataset.from_list([{"prompt": name} for name in games]), reward_funcs=rewarded,
                rollout_func=for_trl(games, max_steps=30, temperature=1.0))
    """
    return episodes.for_trl(
        lambda name: Room(games[name]),
        lambda episode: reward(Episode(**vars(episode))),
        more={"states": lambda episode: episode.environment.states},
        **settings,
    )
