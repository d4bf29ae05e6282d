"""The conversations that a vLLM worker serves: what each of them asks next, and which of them may ask now.

vLLM reads a turn from its cache as far as the conversation is still in it. If all conversations together have more
tokens than the cache, each is forgotten before its next turn and read again from the beginning, turn after turn. So
only the first ones that fit go on, and the others follow as those end.
"""

import random
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic, NamedTuple, TypeVar

from a2rl.sampling import Completion, Conversation, OnEnd, Prompt

EVERYONE = sys.maxsize

T = TypeVar("T")


class PromptRequest(NamedTuple):
    """A prompt for the model."""

    conversation: int
    """The number of its conversation."""
    prompt: Prompt
    seed: int


class Conversations(Generic[T]):
    """Conversations in progress: which prompts they ask for, and what they returned."""

    def __init__(
        self, conversations: Sequence[Conversation[T]], seed: int, cache_tokens: int | None, on_end: OnEnd
    ) -> None:
        """Begins every conversation.

        Args:
            conversations: The conversations.
            seed: Each turn is sampled with a seed derived from this one, the conversation's number and the turn's.
            cache_tokens: Number of tokens that fit into the engine's cache; None if nothing is kept between turns.
            on_end: Called whenever a conversation has ended.
        """
        self._conversations, self._on_end = conversations, on_end
        self._seeds = [random.Random(f"{seed}/{index}") for index in range(len(conversations))]
        self._results: dict[int, T] = {}
        self._away: dict[int, Future[Any]] = {}
        self._asked: dict[int, PromptRequest] = {}
        self._room = _Room(cache_tokens)
        for index in range(len(conversations)):
            self._go_on(index, None)

    def asked(self) -> list[PromptRequest]:
        """Returns the prompts that were not returned before and for which there is room."""
        for index in [index for index, pending in self._away.items() if pending.done()]:
            del self._away[index]
            self._go_on(index, None)
        return [self._asked.pop(index) for index in sorted(self._asked) if index < self._room.end]

    def answer(self, index: int, completion: Completion, cached_tokens: int) -> None:
        """Continues a conversation with the completion of its prompt.

        Args:
            index: The conversation's number.
            completion: What the model wrote.
            cached_tokens: How many tokens of the prompt the engine had in its cache.
        """
        self._room.note_turn(index, completion, cached_tokens)
        self._go_on(index, completion)

    def wait_for_futures(self) -> bool:
        """Waits until a conversation can go on that waits for something else than the model; False if none does."""
        if self._away:
            wait(self._away.values(), return_when=FIRST_COMPLETED)
        return bool(self._away)

    def results(self) -> list[T]:
        """Returns what the conversations returned, when all have ended."""
        return [self._results[index] for index in range(len(self._conversations))]

    def _go_on(self, index: int, completion: Completion | None) -> None:
        conversation = self._conversations[index]
        try:
            prompt = next(conversation) if completion is None else conversation.send(completion)
        except StopIteration as end:
            self._results[index] = end.value
            self._room.leave(index)
            self._on_end()
            return
        if isinstance(prompt, Future):
            self._away[index] = prompt
        else:
            self._asked[index] = PromptRequest(index, prompt, self._seeds[index].getrandbits(63))


class _Room:
    """Which conversations have room in the engine's cache.

    The cache drops its oldest content first. If it is only a little too small, each turn drops what a later turn needs.
    So there must be room for the next turn of every conversation that goes on.
    """

    def __init__(self, tokens: int | None) -> None:
        self._tokens = tokens
        self._known: dict[int, tuple[int, int]] = {}
        """Of each conversation that has had a turn: the tokens that were in the cache before its first one, with which
        other conversations begin as well, and those that it has."""
        self._next: dict[int, int] = {}
        """Of those that go on or wait: its own tokens after the next turn, if that is as long as the last one."""
        self._largest = 0
        """The most that a conversation has had of these."""
        self.end = EVERYONE
        """The number of the first conversation that has to wait."""

    def note_turn(self, index: int, completion: Completion, cached_tokens: int) -> None:
        """Notes how large a conversation is after a turn."""
        shared, before = self._known.get(index, (cached_tokens, completion.prompt_tokens))
        held = completion.prompt_tokens + completion.tokens
        self._known[index] = shared, held
        self._next[index] = held + max(held - before, completion.tokens) - shared
        self._largest = max(self._largest, self._next[index])
        self.end = min(self.end, self._fitting())

    def leave(self, index: int) -> None:
        """Forgets a conversation that has ended, and lets others follow.

        A conversation that waited has to be read again. So that this is done only once, it goes on when there is room
        for as many tokens as the largest conversation has had.
        """
        if self._next.pop(index, None) is not None:
            self.end = max(self.end, self._fitting(self._largest))

    def _fitting(self, at_least: int = 0) -> int:
        """The first conversation that does not fit after those before it, if each takes at least so many tokens."""
        if self._tokens is None:
            return EVERYONE
        taken = 0
        for place, index in enumerate(sorted(self._next)):
            taken += max(self._next[index], at_least)
            if taken > self._tokens and place:
                return index
        return EVERYONE
