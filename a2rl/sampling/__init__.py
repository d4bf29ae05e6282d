"""Batched text generation behind one protocol: prompts in, texts out.

Two back ends: `transformers` (in process, CPU or GPU) and `vllm` (a worker process in its own environment).

    with open_sampler(Path("models/tiny"), backend="transformers") as sampler:
        [completion] = sampler.generate(["Question: 1 + 1?\\nAnswer:"], SamplingParams(max_new_tokens=16))

Interactive tasks use conversations: generators that yield a prompt, are sent its completion, and go on until they
return. The engine batches whichever of them wait for the model, so that no episode waits for the slowest:

    def episode(game: Game) -> Conversation[bool]:
        text = game.intro
        while not game.over:
            completion = yield text
            text += completion.text + game.step(completion.text)
        return game.won

    won = sampler.converse([episode(game) for game in games], SamplingParams(max_new_tokens=100, stop=("\\n",)))

An episode that waits for something slow does so without holding up the others: it yields a Future and goes on when that
is done.

    found = threads.submit(search, query)
    yield found
    text += found.result()
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

from a2rl.errors import UsageError

Backend = Literal["transformers", "vllm"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


Prompt = str | tuple[Message, ...]
"""A text to continue, or a chat that the model's own chat template turns into one."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to decode. Temperature 0 is greedy."""

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these; the stop string is not part of the completion."""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    """Prompt or conversation i of a call is sampled with a seed derived from (seed, i): what is written there does not
    depend on the others."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote after one prompt."""

    text: str
    finish: Literal["stop", "length"]
    """`length`: the token limit ended it, not the model and not a stop string."""
    prompt_tokens: int
    tokens: int


T = TypeVar("T")
Conversation = Generator[Prompt | Future[Any], Completion, T]
"""An episode. Each prompt holds the whole history; what it shares with the one before costs nothing again."""
OnEnd = Callable[[], None]
"""Called whenever a prompt or a conversation is done, for whoever shows progress."""


def one_turn(prompt: Prompt) -> Conversation[Completion]:
    """A conversation of one turn."""
    return (yield prompt)


class Sampler(Protocol):
    """A loaded model. Results come in the order of the prompts or conversations."""

    @property
    def has_chat_template(self) -> bool: ...

    def room_after(self, prompt: Prompt) -> int:
        """How many tokens of the model's context the prompt leaves free; below 0 where it does not fit.

        A prompt that does not leave room for its completion loses its beginning.
        """
        ...

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """Runs every conversation to its end and returns what each one returns."""
        ...

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Completion]: ...

    def close(self) -> None: ...


@contextmanager
def open_sampler(
    model: Path, backend: Backend = "transformers", *, exact: bool = False, on_end: OnEnd = lambda: None
) -> Iterator[Sampler]:
    """Loads the model folder and yields its sampler; everything is freed on exit.

    Args:
        model: a checkpoint folder: config.json, tokenizer, *.safetensors. No remote code is ever run.
        backend: which engine generates.
        exact: results independent of batching to the last bit (batch of 1), slower. Without it greedy texts may differ
            where two tokens tie numerically.
        on_end: called in this thread.

    Raises:
        InfrastructureError: the back end cannot start on this machine.
        UsageError: the folder is not a checkpoint that can be loaded, or there is no such back end.
    """
    sampler: Sampler
    if backend == "transformers":
        from a2rl.sampling.transformers_backend import TransformersSampler

        sampler = TransformersSampler(model, exact, on_end)
    elif backend == "vllm":
        from a2rl.sampling.vllm_backend import VllmSampler

        sampler = VllmSampler(model, exact, on_end)
    else:
        raise UsageError(f"no sampling back end {backend!r}: known ones are {', '.join(get_args(Backend))}")
    try:
        yield sampler
    finally:
        sampler.close()
