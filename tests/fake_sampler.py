"""A sampler that no model stands behind: it answers what a function says."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from a2rl.sampling import Completion, Conversation, Prompt, SamplingParams, one_turn

T = TypeVar("T")


class FakeSampler:
    """See `a2rl.sampling.Sampler`; it keeps what it was asked, call by call."""

    def __init__(
        self, answer: Callable[[Prompt], str | Completion], chat: bool = False, context: int = 100_000
    ) -> None:
        """Args: context: in characters."""
        self.has_chat_template = chat
        self.calls: list[int] = []
        self.asked: list[Prompt] = []
        self.params: list[SamplingParams] = []
        self._answer, self._context = answer, context

    def room_after(self, prompt: Prompt) -> int:
        return self._context - len(str(prompt))

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Completion]:
        return self.converse([one_turn(prompt) for prompt in prompts], params)

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        self.calls.append(len(conversations))
        self.params.append(params)
        return [self._run(conversation) for conversation in conversations]

    def close(self) -> None:
        pass

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
                    Completion(answer, "stop", len(str(prompt)), 5) if isinstance(answer, str) else answer
                )
        except StopIteration as end:
            result: T = end.value
            return result
