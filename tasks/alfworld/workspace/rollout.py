"""Plays many games at once with a model that is being trained: the rollouts of online RL.

The agent gets this file with `alfred/` (the games), `episodes.py` and `decoder` (batched episodes). `for_trl`
returns a `rollout_func` for TRL's GRPOTrainer.

    from alfred import Game, find_games
    from rollout import play_games

    episodes = play_games(model, tokenizer, [Game.load(path) for path in find_games("data/train")], temperature=1.0)
    print(sum(episode.won for episode in episodes) / len(episodes))
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import episodes
from alfred import Game, Play
from alfred.transcript import opening, read_command
from alfred.wording import NOTHING_HAPPENS


class GameEnvironment:
    """A game as an environment; see `episodes.Environment`."""

    def __init__(self, game: Game, before: str = "") -> None:
        """Opens a game.

        Args:
            game: The game.
            before: What the model reads first, such as `framed` examples.
        """
        self.game, self.play = game, Play(game)
        self.prompt = before + opening(self.play.intro)
        self.invalid = 0
        self.states: list[Hashable] = []
        """The state before each turn."""

    @property
    def done(self) -> bool:
        """Whether the game is won."""
        return self.play.won

    @property
    def reward(self) -> float:
        """1 if the game is won, else 0."""
        return float(self.play.won)

    def write(self, line: str) -> str:
        """Carries out a command, and returns what follows it in the prompt."""
        self.states.append(self.play.state)
        observation = self.play.step(read_command(line))
        self.invalid += observation == NOTHING_HAPPENS
        return observation + ("" if self.play.won else "\n>")


class Episode(episodes.Episode):
    """A game that the model played."""

    @property
    def game(self) -> Game:
        """The game that was played."""
        return self.environment.game

    @property
    def commands(self) -> list[str]:
        """What the model wrote, turn by turn."""
        return self.turns

    @property
    def won(self) -> bool:
        """Whether the model won."""
        return self.environment.done


def play_games(model: Any, tokenizer: Any, games: Sequence[Game], **settings: Any) -> list[Episode]:
    """Plays one episode for each game; games may repeat. `settings`: see `episodes.play`."""
    played = episodes.play(model, tokenizer, [GameEnvironment(game) for game in games], **settings)
    return [Episode(**vars(episode)) for episode in played]


def for_trl(
    games: Mapping[str, Game],
    reward: Callable[[Episode], float] = lambda episode: float(episode.won),
    **settings: Any,
) -> Callable[[list[str], Any], dict[str, Any]]:
    """Returns a `rollout_func`; see `episodes.for_trl`. Prompts of the data set are the names of the games. The column
    `states` has the state of the game before each turn.

    GRPOTrainer(..., train_dataset=Dataset.from_list([{"prompt": name} for name in games]), reward_funcs=rewarded,
                rollout_func=for_trl(games, max_steps=30, temperature=1.0))
    """
    return episodes.for_trl(
        lambda name: GameEnvironment(games[name]),
        lambda episode: reward(Episode(**vars(episode))),
        more={"states": lambda episode: episode.environment.states},
        **settings,
    )
