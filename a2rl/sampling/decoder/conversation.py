"""Conversations with the model, and where each of them stands."""

import random
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from a2rl.sampling.decoder.prefixes import Prefix, common_prefix

T = TypeVar("T")


class Turn(NamedTuple):
    """Tokens for the model to continue."""

    tokens: list[int]
    max_new_tokens: int


class Written(NamedTuple):
    """What the model wrote."""

    tokens: list[int]
    stopped: bool
    """Whether an end token or a stop string ended it; False: the limit did."""
    logprobs: list[float]
    """Log probabilities of the tokens under the sampling distribution; empty for greedy decoding."""


Conversation = Generator[Turn | Future[Any], Written, T]
Stops = Callable[[Sequence[list[int]]], Sequence[bool]]
"""Given the tokens that each row has written so far, says which rows are complete."""


@dataclass(slots=True, eq=False)
class Dialogue(Generic[T]):
    """A conversation in progress. `tokens` are the prompt of this turn and what was written after it."""

    index: int
    conversation: Conversation[T]
    uniform: random.Random
    tokens: list[int] = field(default_factory=list)
    prompt_length: int = 0
    limit: int = 0
    prefix: Prefix | None = None
    """What its row does not hold itself, because other conversations begin with it as well."""
    cached: int = 0
    """How many of `tokens`, from the first, are in the cache: in the prefix or in its row."""
    slot: int = -1
    stopped: bool = False
    logprobs: list[float] = field(default_factory=list)
    pending: Future[Any] | None = None
    """What the conversation waits for, if not for the model."""

    @property
    def written(self) -> list[int]:
        """The tokens that the model has written in this turn."""
        return self.tokens[self.prompt_length :]

    @property
    def start(self) -> int:
        """The position of the first token in its own row."""
        return self.prefix.end if self.prefix else 0

    @property
    def longest(self) -> int:
        """The most tokens that its own row can have at the end of this turn."""
        return self.prompt_length + self.limit - self.start

    @property
    def turn_ended(self) -> bool:
        """Whether the model has written all of its turn."""
        return self.stopped or len(self.tokens) - self.prompt_length >= self.limit

    def take_row(self, slot: int, prefix: Prefix | None) -> None:
        """Gets a row of the cache."""
        self.slot, self.prefix = slot, prefix
        self.cached = self.start

    def give_up_row(self) -> None:
        """Forgets everything that is in the cache."""
        self.prefix, self.cached, self.slot = None, 0, -1

    def begin(self, turn: Turn) -> None:
        """Begins a turn with what the cache holds of it."""
        self.cached = min(common_prefix(self.tokens[: self.cached], turn.tokens), len(turn.tokens) - 1)
        if self.cached < self.start:
            self.prefix, self.cached = None, 0
        self.tokens, self.prompt_length = list(turn.tokens), len(turn.tokens)
        self.limit, self.stopped, self.logprobs = turn.max_new_tokens, False, []
