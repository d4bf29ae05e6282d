"""Plays many episodes at once with a model that is being trained: the rollouts of online RL.

Tasks hand this file to agents as it is, next to `decoder` (batched generation that keeps every episode's key-value
cache), `rollout_workers.py` (rollouts in several processes) and a class that is an episode of the task. An episode is
one growing text: the environment's opening, a turn of the model, the environment's answer, and so on.

    episodes = play(model, tokenizer, [Room(game) for game in games], max_steps=30, temperature=1.0)
    print(sum(episode.reward for episode in episodes) / len(episodes))
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from decoder import (
    Chat,
    Decoder,
    Decoding,
    Stops,
    StopStrings,
    Turn,
    VllmDecoder,
    Written,
    awake,
    checkpoint_weights,
    end_tokens,
    longest_prompt,
    prompt_tokens,
    told,
    unsupported_layers,
)
from rollout_workers import Columns, RolloutWorkers

MAX_ROWS = 256
CACHE_BYTES = 4 << 30


class Environment(Protocol):
    """One episode of something that answers what the model writes."""

    @property
    def prompt(self) -> str | Chat:
        """The first text for the model to continue; it ends where the model's turn begins. Or a chat."""

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""

    @property
    def reward(self) -> float:
        """What the episode is worth so far."""

    @property
    def invalid(self) -> int:
        """How many turns did nothing."""

    def write(self, turn: str) -> str:
        """Takes a turn; returns the text up to the beginning of the next one."""


class Turns(Protocol):
    """Says where the model's turns end."""

    def stops(self, tokenizer: Any) -> Stops | None:
        """Returns what says which turns are complete; None: only the model's end token and the limit end a turn."""

    def read(self, written: str) -> tuple[str, str]:
        """Returns what the environment gets of a turn, and what must follow before the environment's answer."""


class Until:
    """Each turn goes on to the first of some texts, or to the model's end token. What it gets ends before it."""

    def __init__(self, *strings: str) -> None:
        self.strings = strings

    def stops(self, tokenizer: Any) -> Stops | None:
        """Returns what says in which turns one of the texts was written."""
        return StopStrings(tokenizer, self.strings) if self.strings else None

    def read(self, written: str) -> tuple[str, str]:
        """Returns the turn up to the first of the texts."""
        places = (place for string in self.strings if (place := written.find(string)) >= 0)
        return written[: min(places, default=len(written))], ""


class Lines(Until):
    """Each turn is a line. The environment gets it without its line break."""

    def __init__(self) -> None:
        super().__init__("\n")

    def read(self, written: str) -> tuple[str, str]:
        """Returns the line, and the line break if the turn lacks it."""
        line, ended, _ = written.partition("\n")
        return line.strip(), "" if ended else "\n"


LINES = Lines()


@dataclass
class OneTurn:
    """A question with one answer as an environment."""

    prompt: str | Chat
    grade: Callable[[str], float]
    """Returns what an answer is worth."""
    reward: float = 0.0
    done: bool = False
    invalid: int = 0

    def write(self, turn: str) -> str:
        """Takes the answer."""
        self.reward, self.done = self.grade(turn), True
        return ""


@dataclass
class Episode:
    """A played episode. `tokens` follow the prompt: the model's turns and the environment's answers."""

    environment: Any = field(compare=False)
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log probability of each token under the sampling distribution; 0 for the environment's answers."""
    written: list[int] = field(default_factory=list)
    """1 for the model's tokens, 0 for the environment's answers."""
    turns: list[str] = field(default_factory=list)
    invalid: int = 0
    reward: float = 0.0
    cut: bool = False
    """Whether the time was over before it ended: its last turn is not whole, and the environment did not get it."""


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
    turns: Turns = LINES,
    template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    player: Any = None,
    until: float = inf,
) -> list[Episode]:
    """Plays each environment to its end.

    Args:
        model: A causal model of transformers, also with an adapter of peft.
        max_steps: The most turns in an episode.
        max_new_tokens: The most tokens in a turn.
        temperature: 0 for greedy decoding.
        max_invalid: An episode ends after so many turns without effect; episodes that loop teach little.
        max_tokens: An episode ends when it has become longer than this, or too long for the model's context. A first
            prompt that is too long loses its beginning, as when it is graded.
        template_kwargs: Arguments of the chat template, for prompts that are chats.
        player: What takes over the model's weights and plays in its place. A copy of the model in bfloat16 is about
            twice as fast as float32 where the processor or GPU has instructions for bfloat16. An engine of vLLM in this
            process, a `vllm.LLM`, is the fastest on a GPU: see `decoder/with_vllm.py`.
        until: When `time.monotonic()` reaches this, the episodes that have not ended are cut off.

    Raises:
        ValueError: The model has layers that only an engine of vLLM can play, such as linear attention.
    """
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or max_tokens
    most_invalid = max_steps if max_invalid is None else max_invalid
    limits = _Limits(max_steps, max_new_tokens, most_invalid, min(max_tokens, context), until)
    ends = end_tokens(model, tokenizer)
    # Where there is nothing to continue, the model continues an end, as when it is graded.
    prompts = [
        prompt_tokens(tokenizer, environment.prompt, template_kwargs) or [min(ends, default=0)]
        for environment in environments
    ]
    episodes = [
        _episode(tokenizer, environment, prompt, turns, limits, ends)
        for environment, prompt in zip(environments, prompts, strict=True)
    ]
    with _decoder(model, ends, player) as decoder:
        return decoder.run(episodes, Decoding(temperature, seed=seed), _in_time(turns.stops(tokenizer), until))


def _in_time(stops: Stops | None, until: float) -> Stops | None:
    """Ends all turns when the time is over."""

    def complete(rows: Sequence[list[int]]) -> Sequence[bool]:
        if time.monotonic() >= until:
            return [True] * len(rows)
        return stops(rows) if stops else [False] * len(rows)

    return stops if until == inf else complete


@contextmanager
def _decoder(model: Any, ends: set[int], player: Any) -> Iterator[Decoder | VllmDecoder]:
    """What runs the conversations."""
    is_engine = hasattr(player, "llm_engine")
    if not is_engine and (unsupported := unsupported_layers(model.config.get_text_config())):
        layers = ", ".join(sorted(unsupported))
        raise ValueError(f"these layers ({layers}) cannot be played here: give an engine of vLLM as `player`")
    with _playing(model, None if is_engine else player) as playing:
        if is_engine:
            with awake(player, checkpoint_weights(playing)):
                yield VllmDecoder(player, ends)
        else:
            yield Decoder(playing, ends, MAX_ROWS, CACHE_BYTES)


@contextmanager
def _playing(model: Any, player: Any) -> Iterator[Any]:
    """The model that plays: the copy with the current weights, or the model in evaluation mode.

    In a copy, an adapter is merged: without that, two cores take 1.7 times as long for Qwen2.5-Coder-0.5B. In the model
    itself it is not: in bfloat16, adding it and taking it away again changes the weights each time.
    """
    if player is not None:
        copied = dict(player.named_parameters())
        with torch.no_grad():
            for name, weights in checkpoint_weights(model):
                copied[name].copy_(weights)
        yield player
        return
    was_training = model.training
    model.eval()
    try:
        yield model.get_base_model() if hasattr(model, "get_base_model") else model
    finally:
        model.train(was_training)


def for_trl(
    environment: Callable[[str], Environment],
    reward: Callable[[Episode], float] = lambda episode: episode.reward,
    more: Mapping[str, Callable[[Episode], Any]] = MappingProxyType({}),
    seed: int = 0,
    processes: int = 1,
    **settings: Any,
) -> Callable[[list[str], Any], dict[str, Any]]:
    """Returns a `rollout_func` for TRL's GRPOTrainer.

    The prompts of the data set are names of episodes. The reward is a column, which a reward function passes on:

    def rewarded(reward, **_):
        return reward

    Args:
        environment: Makes a new episode from a name.
        more: Further columns for reward functions and trainers.
        processes: How many processes play, each on one core, if the model is on the CPU. The rollouts of small models
            gain nothing from threads: most of their time is spent between the matrix products.
        settings: Further arguments of `play`.
    """

    def columns(model: Any, tokenizer: Any, names: list[str], seed: int) -> Columns:
        episodes = play(model, tokenizer, [environment(name) for name in names], seed=seed, **settings)
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.tokens for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes],
            "env_mask": [episode.written for episode in episodes],
            "reward": [reward(episode) for episode in episodes],
            **{name: [value(episode) for episode in episodes] for name, value in more.items()},
        }

    workers = RolloutWorkers(columns, processes)

    def rollout(names: list[str], trainer: Any) -> Columns:
        model, rank = trainer.accelerator.unwrap_model(trainer.model), trainer.accelerator.process_index
        # Each step and each of several processes that train has seeds of its own.
        own = seed + 1000 * trainer.state.global_step + 10**9 * rank
        return workers.play(model, trainer.processing_class, names, own)

    return rollout


class _Limits(NamedTuple):
    steps: int
    new_tokens: int
    invalid: int
    tokens: int
    until: float

    @property
    def prompt(self) -> int:
        """The most tokens before a turn."""
        return longest_prompt(self.tokens, self.new_tokens)

    def allow(self, episode: Episode) -> bool:
        is_short = len(episode.prompt) + len(episode.tokens) <= self.prompt
        return len(episode.turns) < self.steps and episode.invalid < self.invalid and is_short


def _episode(
    tokenizer: Any, environment: Environment, prompt: list[int], turns: Turns, limits: _Limits, ends: set[int]
) -> Generator[Turn, Written, Episode]:
    episode = Episode(environment, prompt[-limits.prompt :])
    while not environment.done and limits.allow(episode):
        if time.monotonic() >= limits.until:  # reading a prompt takes time, too
            episode.cut = True
            break
        before = episode.prompt + episode.tokens
        written = yield Turn(before, min(limits.new_tokens, limits.tokens - len(before)))
        _add(episode, written.tokens, written.logprobs or [0.0] * len(written.tokens), 1)
        if time.monotonic() >= limits.until:
            episode.cut = True
            break
        # Not every end token is special to the tokenizer.
        said = written.tokens[:-1] if ends.intersection(written.tokens[-1:]) else written.tokens
        turn, lacking = turns.read(tokenizer.decode(told(tokenizer, said), skip_special_tokens=True))
        answer = environment.write(turn)
        episode.turns.append(turn)
        episode.invalid, episode.reward = environment.invalid, environment.reward
        if answer:
            room = limits.tokens - len(before) - len(written.tokens)
            _add(episode, tokenizer(lacking + answer, add_special_tokens=False)["input_ids"][:room], None, 0)
    return episode


def _add(episode: Episode, tokens: Sequence[int], logprobs: Sequence[float] | None, written: int) -> None:
    episode.tokens += tokens
    episode.logprobs += logprobs if logprobs is not None else [0.0] * len(tokens)
    episode.written += [written] * len(tokens)
