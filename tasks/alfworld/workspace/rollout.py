"""Plays many games at once with a model that is being trained: the rollouts of online RL.

Self-contained: the agent gets this file beside `alfred/` (the games) and `decoder.py` (batched generation that keeps
every game's key-value cache). `for_trl` makes of it what TRL's GRPOTrainer takes as `rollout_func`.

    from alfred import Game, find_games
    from rollout import play_games

    episodes = play_games(model, tokenizer, [Game.load(path) for path in find_games("data/train")], temperature=1.0)
    print(sum(episode.won for episode in episodes) / len(episodes))
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from alfred import Game, Play
from alfred.transcript import opening
from alfred.wording import NOTHING_HAPPENS
from decoder import Decoder, Decoding, Turn, Written

MAX_ROWS = 256
CACHE_BYTES = 4 << 30


@dataclass
class Episode:
    """A game as the model played it. `tokens` follow the prompt: what the model wrote, and the game's answers."""

    game: Game
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each token under the distribution it was drawn from; 0 for the game's answers."""
    written: list[int] = field(default_factory=list)
    """1 for tokens that the model wrote, 0 for the game's answers."""
    commands: list[str] = field(default_factory=list)
    invalid: int = 0
    won: bool = False


def play_games(
    model: Any,
    tokenizer: Any,
    games: Sequence[Game],
    *,
    max_steps: int = 30,
    max_new_tokens: int = 24,
    temperature: float = 0.0,
    seed: int = 0,
    max_invalid: int | None = None,
    max_tokens: int = 100_000,
) -> list[Episode]:
    """One episode for each game; the same game may be there several times.

    Args:
        max_steps: commands in a game at most.
        max_new_tokens: in one command at most.
        max_invalid: a game with so many commands that did nothing ends; who is stuck in a loop teaches little.
        max_tokens: a game that has become longer ends.
    """
    was_training = model.training
    model.eval()
    newline = _newline(tokenizer)
    decoder = Decoder(model, {tokenizer.eos_token_id}, MAX_ROWS, CACHE_BYTES)
    limits = _Limits(max_steps, max_new_tokens, max_steps if max_invalid is None else max_invalid, max_tokens)
    episodes = [_episode(tokenizer, game, limits) for game in games]
    played = decoder.run(episodes, Decoding(temperature, seed=seed), lambda rows: [row[-1] in newline for row in rows])
    model.train(was_training)
    return played


def for_trl(
    games: Mapping[str, Game],
    reward: Callable[[Episode], float] = lambda episode: float(episode.won),
    seed: int = 0,
    **settings: Any,
) -> Callable[[list[str], Any], dict[str, Any]]:
    """A `rollout_func`. Prompts of the data set are the names of the games, and `reward` comes as a column.

    def rewarded(reward, **_):
        return reward

    GRPOTrainer(..., train_dataset=Dataset.from_list([{"prompt": name} for name in games]), reward_funcs=rewarded,
                rollout_func=for_trl(games, max_steps=30, temperature=1.0))
    """

    def rollout(names: list[str], trainer: Any) -> dict[str, Any]:
        episodes = play_games(
            trainer.accelerator.unwrap_model(trainer.model),
            trainer.processing_class,
            [games[name] for name in names],
            seed=seed + 1000 * trainer.state.global_step,
            **settings,
        )
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.tokens for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes],
            "env_mask": [episode.written for episode in episodes],
            "reward": [reward(episode) for episode in episodes],
            "won": [episode.won for episode in episodes],
        }

    return rollout


class _Limits(NamedTuple):
    steps: int
    new_tokens: int
    invalid: int
    tokens: int

    def allow(self, episode: Episode) -> bool:
        tokens = len(episode.prompt) + len(episode.tokens) + self.new_tokens
        return len(episode.commands) < self.steps and episode.invalid < self.invalid and tokens <= self.tokens


def _episode(tokenizer: Any, game: Game, limits: _Limits) -> Generator[Turn, Written, Episode]:
    play = Play(game)
    episode = Episode(game, tokenizer(opening(play.intro))["input_ids"])
    while not play.won and limits.allow(episode):
        written = yield Turn(episode.prompt + episode.tokens, limits.new_tokens)
        _add(episode, written.tokens, written.logprobs or [0.0] * len(written.tokens), 1)
        line = tokenizer.decode(written.tokens, skip_special_tokens=True).partition("\n")[0].strip()
        observation = play.step(line)
        episode.commands.append(line)
        episode.invalid += observation == NOTHING_HAPPENS
        episode.won = play.won
        ended_line = "\n" in tokenizer.decode(written.tokens[-1:])
        answer = observation + ("" if play.won else "\n>")
        _add(episode, tokenizer(answer if ended_line else "\n" + answer)["input_ids"], None, 0)
    return episode


def _add(episode: Episode, tokens: Sequence[int], logprobs: Sequence[float] | None, written: int) -> None:
    episode.tokens += tokens
    episode.logprobs += logprobs if logprobs is not None else [0.0] * len(tokens)
    episode.written += [written] * len(tokens)


@cache
def _newline(tokenizer: Any) -> set[int]:
    """The tokens that end a line."""
    return {token for token in range(len(tokenizer)) if "\n" in tokenizer.decode([token])}
