"""A game as an environment that a model which is being trained plays: the rollouts of online RL.

The agent gets this file with `alfred/` (the games), `episodes.py` and `decoder` (batched episodes).

    from alfred import Game, find_games
    from episodes import for_trl, play
    from rollout import GameEnvironment

    games = [Game.load(path) for path in find_games("data/train")]
    episodes = play(model, tokenizer, [GameEnvironment(game) for game in games], max_steps=30, temperature=1.0)
    print(sum(episode.reward for episode in episodes) / len(episodes))
    rollout_func = for_trl(lambda number: GameEnvironment(games[int(number)]), max_steps=30, temperature=1.0)
"""

from collections.abc import Hashable

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
