"""A sampler without a model: a function gives its answers."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from a2rl.sampling import NO_KWARGS, Completion, Conversation, Prompt, Sampler, SamplingParams

T = TypeVar("T")


class FakeSampler(Sampler):
    """A sampler (see `a2rl.sampling.Sampler`) that records its prompts, call by call."""

    has_chat_template = False

    def __init__(
        self, answer: Callable[[Prompt], str | Completion], chat: bool = False, context: int = 100_000
    ) -> None:
        """Args: context: in characters."""
        self.has_chat_template = chat
        self.calls: list[int] = []
        self.asked: list[Prompt] = []
        self.params: list[SamplingParams] = []
        self._answer, self._context = answer, context

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        return self._context - len(str(prompt))

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        self.calls.append(len(conversations))
        self.params.append(params)
        return [self._run(conversation) for conversation in conversations]

    def _run(self, conversation: Conversation[T]) -> T:
        try:
            prompt = next(conversation)
            while True:
                if isinstance(prompt, Future):
                    wait([prompt])
                    prompt = next(conversation)
                    continue
                self.asked.append(prompt)
                answer = self._answer(prompt)
                prompt = conversation.send(
                    Completion(answer, "stop", len(str(prompt)), 5, is_cut=self.room_after(prompt) < 0)
                    if isinstance(answer, str)
                    else answer
                )
        except StopIteration as end:
            result: T = end.value
            return result
