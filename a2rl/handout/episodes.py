"""Plays many episodes at once with a model that is being trained: the rollouts of online RL.

Tasks hand this file to agents as it is, beside `decoder.py` (batched generation that keeps every episode's key-value
cache) and a `rollout.py` that says what an episode of the task is. An episode is one text that grows: the environment's
opening, a line that the model writes, the answer, and so on.

    episodes = play(model, tokenizer, [Room(game) for game in games], max_steps=30, temperature=1.0)
    print(sum(episode.reward for episode in episodes) / len(episodes))
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from decoder import Decoder, Decoding, Turn, Written

MAX_ROWS = 256
CACHE_BYTES = 4 << 30


class Environment(Protocol):
    """One episode of something that answers lines of text."""

    @property
    def prompt(self) -> str:
        """What the model is to continue first; it ends where the model's line begins."""
        ...

    @property
    def done(self) -> bool: ...

    @property
    def reward(self) -> float:
        """What the episode is worth so far."""
        ...

    @property
    def invalid(self) -> int:
        """How many lines did nothing."""
        ...

    def write(self, line: str) -> str:
        """Takes a line, without its line break; the text up to where the next line begins."""
        ...


@dataclass
class Episode:
    """What happened. `tokens` follow the prompt: what the model wrote, and the environment's answers."""

    environment: Any = field(compare=False)
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each token under the distribution it was drawn from; 0 for the answers."""
    written: list[int] = field(default_factory=list)
    """1 for tokens that the model wrote, 0 for the answers."""
    lines: list[str] = field(default_factory=list)
    invalid: int = 0
    reward: float = 0.0


def play(
    model: Any,
    tokenizer: Any,
    environments: Sequence[Environment],
    *,
    max_steps: int = 30,
    max_new_tokens: int = 24,
    temperature: float = 0.0,
    seed: int = 0,
    max_invalid: int | None = None,
    max_tokens: int = 100_000,
) -> list[Episode]:
    """Plays each environment, none of them begun, to its end.

    Args:
        max_steps: lines in an episode at most.
        max_new_tokens: in one line at most.
        max_invalid: an episode with so many lines that did nothing ends; who is stuck in a loop teaches little.
        max_tokens: an episode that has become longer ends.
    """
    was_training = model.training
    model.eval()
    newline = _newline(tokenizer)
    decoder = Decoder(model, {tokenizer.eos_token_id}, MAX_ROWS, CACHE_BYTES)
    limits = _Limits(max_steps, max_new_tokens, max_steps if max_invalid is None else max_invalid, max_tokens)
    episodes = [_episode(tokenizer, environment, limits) for environment in environments]
    played = decoder.run(episodes, Decoding(temperature, seed=seed), lambda rows: [row[-1] in newline for row in rows])
    model.train(was_training)
    return played


def for_trl(
    environment: Callable[[str], Environment],
    reward: Callable[[Episode], float] = lambda episode: episode.reward,
    seed: int = 0,
    **settings: Any,
) -> Callable[[list[str], Any], dict[str, Any]]:
    """A `rollout_func` for TRL's GRPOTrainer. Prompts of the data set are names; `environment` makes of a name a new
    episode, and `reward` comes as a column, which a reward function hands on:

    def rewarded(reward, **_):
        return reward
    """

    def rollout(names: list[str], trainer: Any) -> dict[str, Any]:
        episodes = play(
            trainer.accelerator.unwrap_model(trainer.model),
            trainer.processing_class,
            [environment(name) for name in names],
            seed=seed + 1000 * trainer.state.global_step,
            **settings,
        )
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.tokens for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes],
            "env_mask": [episode.written for episode in episodes],
            "reward": [reward(episode) for episode in episodes],
        }

    return rollout


class _Limits(NamedTuple):
    steps: int
    new_tokens: int
    invalid: int
    tokens: int

    def allow(self, episode: Episode) -> bool:
        tokens = len(episode.prompt) + len(episode.tokens) + self.new_tokens
        return len(episode.lines) < self.steps and episode.invalid < self.invalid and tokens <= self.tokens


def _episode(tokenizer: Any, environment: Environment, limits: _Limits) -> Generator[Turn, Written, Episode]:
    episode = Episode(environment, tokenizer(environment.prompt)["input_ids"])
    while not environment.done and limits.allow(episode):
        written = yield Turn(episode.prompt + episode.tokens, limits.new_tokens)
        _add(episode, written.tokens, written.logprobs or [0.0] * len(written.tokens), 1)
        line = tokenizer.decode(written.tokens, skip_special_tokens=True).partition("\n")[0].strip()
        answer = environment.write(line)
        episode.lines.append(line)
        episode.invalid, episode.reward = environment.invalid, environment.reward
        ended_line = "\n" in tokenizer.decode(written.tokens[-1:])
        if answer:
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
