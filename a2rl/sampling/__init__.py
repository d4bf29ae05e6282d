"""Batched text generation behind one protocol, with two back ends.

The back ends are `transformers` (in this process, on CPU or GPU) and `vllm` (a worker process in its own environment).

    with open_sampler(Path("models/tiny"), backend="transformers") as sampler:
        [completion] = sampler.generate(["Question: 1 + 1?\\nAnswer:"], SamplingParams(max_new_tokens=16))

Interactive tasks use conversations: generators that yield a prompt, are sent its completion, and continue until they
return. The engine batches all conversations that wait for the model, so that no episode waits for the slowest:

    def episode(game: Game) -> Conversation[bool]:
        text = game.intro
        while not game.over:
            completion = yield text
            text += completion.text + game.step(completion.text)
        return game.won

    won = sampler.converse([episode(game) for game in games], SamplingParams(max_new_tokens=100, stop=("\\n",)))

An episode can wait for something slow without delaying the others: it yields a Future and continues when that is done.

    found = threads.submit(search, query)
    yield found
    text += found.result()
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from a2rl.core.errors import UsageError
from a2rl.sampling.engine_params import Dtype, EngineMemory, VllmParams

if TYPE_CHECKING:
    from a2rl.sampling.vllm_process import EngineLease

Backend = Literal["transformers", "vllm"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
Prompt = str | tuple[Message, ...]
"""A text to continue, or a chat that the model's own chat template turns into one."""


def as_prompt(handed: str | Sequence[Mapping[str, Any]]) -> Prompt:
    """Returns a prompt of a module that is handed to agents, which has chats as lists of plain dictionaries."""
    return handed if isinstance(handed, str) else tuple(Message(**message) for message in handed)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to decode. Temperature 0 is greedy."""

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these; the stop string is not part of the completion."""
    temperature: float = 0.0
    top_p: float = 1.0
    """Only the most likely tokens are drawn whose probabilities add up to this."""
    top_k: int = 0
    """Only so many of the most likely tokens are drawn, before `top_p` applies; 0 means all."""
    seed: int = 0
    """Prompt or conversation i of a call is sampled with a seed derived from (seed, i), so its text does not depend on
    the others."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the model's chat template is given besides the messages, such as `enable_thinking`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote after one prompt."""

    text: str
    finish: Literal["stop", "length"]
    """`length`: the token limit ended it; `stop`: the model or a stop string did."""
    prompt_tokens: int
    tokens: int
    is_cut: bool = False
    """Whether the prompt was too long for the model's context: it lost its beginning, so this answers another prompt.
    An episode ends there."""

    def until(self, stop: Sequence[str]) -> "Completion":
        """The same up to the one of these that ends first: what a reader of single characters would stop at."""
        ends = [(self.text.find(each) + len(each), self.text.find(each)) for each in stop if each in self.text]
        return replace(self, text=self.text[: min(ends)[1]], finish="stop") if ends else self


T = TypeVar("T")
Conversation = Generator[Prompt | Future[Any], Completion, T]
"""An episode. Each prompt contains the whole history; the part shared with the previous one is not computed again."""
OnEnd = Callable[[], None]
"""Called whenever a prompt or a conversation is done, to show progress."""


def one_turn(prompt: Prompt) -> Conversation[Completion]:
    """Returns a conversation of one turn."""
    return (yield prompt)


Asked = TypeVar("Asked")
Told = TypeVar("Told")


def translated(
    conversation: Conversation[T],
    ask: Callable[[Prompt], Generator[Asked, Told, Completion]],
) -> Generator[Asked | Future[Any], Told, T]:
    """Returns the same conversation with other prompts or completions. What it waits for passes through unchanged.

    Args:
        ask: Called with each prompt. It yields what is asked instead, is sent the answer, and returns the completion.
    """
    try:
        prompt = next(conversation)
        while True:
            if isinstance(prompt, Future):
                yield prompt
                prompt = next(conversation)
            else:
                completion = yield from ask(prompt)
                prompt = conversation.send(completion)
    except StopIteration as end:
        result: T = end.value
        return result


class Sampler(Protocol):
    """A loaded model. Results come in the order of the prompts or conversations."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model's tokenizer has a chat template."""

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        """Returns how many tokens of the model's context the prompt leaves free; negative if it does not fit.

        A prompt that leaves too little room for its completion loses its beginning.
        """

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """Runs every conversation to its end and returns what each one returns."""

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Completion]:
        """Completes each prompt."""
        return self.converse([one_turn(prompt) for prompt in prompts], params)


class SamplerAround(Sampler, Protocol):
    """A sampler that has another one answer, and changes or records what it is asked."""

    _sampler: Sampler

    @property
    def has_chat_template(self) -> bool:
        """See `Sampler`."""
        return self._sampler.has_chat_template

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        """See `Sampler`."""
        return self._sampler.room_after(prompt, chat_template_kwargs)


@contextmanager
def open_sampler(
    model: Path,
    backend: Backend = "transformers",
    *,
    exact: bool = False,
    dtype: Dtype | None = None,
    vllm: VllmParams | None = None,
    lease: "EngineLease | None" = None,
    memory: EngineMemory | None = None,
    on_end: OnEnd = lambda: None,
) -> Iterator[Sampler]:
    """Loads the model folder and yields its sampler; everything is freed on exit.

    Args:
        model: a checkpoint folder: config.json, tokenizer, *.safetensors. No remote code is ever run.
        backend: which engine generates.
        exact: results independent of batching to the last bit, slower. Without it, tokens that tie may differ.
        dtype: the dtype to compute with; None: bfloat16 on a GPU, float32 on a CPU.
        vllm: options of the back end vllm.
        lease: a running engine of vLLM to use instead of starting one; it stays when the sampler is closed.
        memory: what an engine of vLLM takes of a GPU's memory.
        on_end: called in this thread.

    Raises:
        InfrastructureError: the back end cannot start on this machine.
        UsageError: the folder is not a checkpoint that can be loaded, or there is no such back end.
    """
    if backend == "transformers":
        from a2rl.sampling.transformers_backend import TransformersSampler

        opened: closing[Any] = closing(TransformersSampler(model, exact, on_end, dtype))
    elif backend == "vllm":
        from a2rl.sampling.vllm_backend import VllmSampler

        opened = closing(VllmSampler(model, exact, on_end, dtype, vllm or VllmParams(), lease, memory))
    else:
        raise UsageError(f"no sampling back end {backend!r}: known ones are {', '.join(get_args(Backend))}")
    with opened as sampler:
        yield sampler
