"""Conversations with the model: what it reads, where it ends, and where each conversation stands.

Prompts are read and ended in the same way when a model is graded and when an agent trains it.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
NO_KWARGS: Mapping[str, Any] = MappingProxyType({})
AS_OF = (
    "{%- macro strftime_now(format) -%}{{ format|replace('%Y', '2024')|replace('%y', '24')|replace('%m', '07')"
    "|replace('%B', 'July')|replace('%b', 'Jul')|replace('%d', '26')|replace('%A', 'Friday')|replace('%a', 'Fri')"
    "|replace('%H', '12')|replace('%I', '12')|replace('%p', 'PM')|replace('%M', '00')|replace('%S', '00') }}"
    "{%- endmacro -%}"
)
"""The date that chat templates which ask for it get, so that prompts are the same every day. The templates of Llama 3
take this one where they cannot ask. transformers hands no function to a template, so this is a part of the template."""
Chat = Sequence[Mapping[str, str]]
"""Messages with the keys `role` and `content`."""


_ANSWER = "zzz"


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
    cached: int = 0
    """How many of `tokens`, from the first, are in its row of the cache."""
    far: bool = False
    """Whether these were read as a part of a long text, for models that read such a text in another way."""
    slot: int = -1
    stopped: bool = False
    logprobs: list[float] = field(default_factory=list)

    @property
    def written(self) -> list[int]:
        """The tokens that the model has written in this turn."""
        return self.tokens[self.prompt_length :]

    @property
    def turn(self) -> Written:
        """The turn, when it has ended."""
        return Written(self.written, self.stopped, self.logprobs)

    @property
    def longest(self) -> int:
        """The most tokens that its row can have at the end of this turn."""
        return self.prompt_length + self.limit

    @property
    def new(self) -> int:
        """How many tokens the model has not read yet."""
        return len(self.tokens) - self.cached

    @property
    def turn_ended(self) -> bool:
        """Whether the model has written all of its turn."""
        return self.stopped or len(self.tokens) - self.prompt_length >= self.limit

    def give_up_row(self) -> None:
        """Forgets everything that is in the cache."""
        self.cached, self.slot = 0, -1

    def begin(self, turn: Turn) -> None:
        """Begins a turn with what the cache holds of it."""
        self.cached = min(common_prefix(self.tokens[: self.cached], turn.tokens), len(turn.tokens) - 1)
        self.tokens, self.prompt_length = list(turn.tokens), len(turn.tokens)
        self.limit, self.stopped, self.logprobs = turn.max_new_tokens, False, []


class Dialogues(Generic[T]):
    """All conversations of a run: which of them ask the model for a turn, and what they returned."""

    def __init__(
        self, conversations: Sequence[Conversation[T]], seed: int, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """Begins every conversation.

        Args:
            conversations: The conversations.
            seed: Conversation i is sampled with (seed, i).
            on_end: Called whenever a conversation has ended.
        """
        self._on_end, self._results = on_end, dict[int, T]()
        self._all = [
            Dialogue(index, conversation, random.Random(f"{seed}/{index}"))
            for index, conversation in enumerate(conversations)
        ]
        self.waiting: list[tuple[Dialogue[T], Future[Any]]] = []
        """Those that wait for something other than the model, and what for."""
        self.ready = [dialogue for dialogue in self._all if self.advance(dialogue, None)]
        """Those that began with a turn."""

    def advance(self, dialogue: Dialogue[T], written: Written | None) -> bool:
        """Gets a conversation's next turn; False if it has ended or waits for a future."""
        try:
            turn = next(dialogue.conversation) if written is None else dialogue.conversation.send(written)
            while not isinstance(turn, Future) and turn.max_new_tokens < 1:
                turn = dialogue.conversation.send(Written([], False, []))
        except StopIteration as end:
            self._results[dialogue.index] = end.value
            self._on_end()
            return False
        if isinstance(turn, Future):
            dialogue.give_up_row()
            self.waiting.append((dialogue, turn))
            return False
        dialogue.begin(turn)
        return True

    def resumed(self, block: bool) -> list[Dialogue[T]]:
        """Returns the conversations that waited and now have a turn.

        Args:
            block: Whether to wait until one of them can go on.
        """
        done = wait([future for _, future in self.waiting], None if block else 0, FIRST_COMPLETED).done
        going_on = [dialogue for dialogue, future in self.waiting if future in done]
        self.waiting = [(dialogue, future) for dialogue, future in self.waiting if future not in done]
        return [dialogue for dialogue in going_on if self.advance(dialogue, None)]

    def results(self) -> list[T]:
        """Returns what the conversations returned, when all have ended."""
        return [self._results[dialogue.index] for dialogue in self._all]


def mark_stopped(dialogues: Sequence[Dialogue[Any]], eos: set[int], stops: Stops | None) -> None:
    """Notes which turns are complete after each of the dialogues got a token."""
    complete = stops([dialogue.written for dialogue in dialogues]) if stops and dialogues else [False] * len(dialogues)
    for dialogue, is_complete in zip(dialogues, complete, strict=True):
        dialogue.stopped = is_complete or dialogue.tokens[-1] in eos


def common_prefix(left: list[int], right: list[int]) -> int:
    """Returns how many tokens two prompts have in common at their beginning."""
    lengths = range(1, min(len(left), len(right)) + 1)
    return bisect_right(lengths, 0, key=lambda length: int(left[:length] != right[:length]))


def prompt_tokens(tokenizer: Any, prompt: str | Chat, template_kwargs: Mapping[str, Any] = NO_KWARGS) -> list[int]:
    """Returns the tokens of a prompt.

    Args:
        prompt: A text to continue, or a chat, to which the tokenizer's chat template is applied.
        template_kwargs: Further arguments of the chat template.

    Raises:
        jinja2.TemplateError: The template does not accept the chat.
    """
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if "strftime_now" in str(tokenizer.chat_template):
        template_kwargs = {"chat_template": AS_OF + tokenizer.get_chat_template(), **template_kwargs}
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **template_kwargs)
    # The template writes the special tokens itself.
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Returns the tokens that end a model's turn: those of its generation configuration, the tokenizer's, and that of
    its chat template."""
    declared = model.generation_config.eos_token_id
    declared = declared if isinstance(declared, list) else [declared]
    return {token for token in [*declared, tokenizer.eos_token_id] if token is not None} | end_of_answer(tokenizer)


def end_of_answer(tokenizer: Any) -> set[int]:
    """Returns the special token with which the chat template ends an answer; nothing if there is none.

    A model may declare another end token, as the base models of Qwen do. Trained on chats, it writes this one.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        return set()
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except (TemplateError, TypeError, ValueError, LookupError):
        return set()
    _, found, behind = text.rpartition(_ANSWER)
    tokens = tokenizer(behind, add_special_tokens=False)["input_ids"][:1] if found else []
    return {token for token in tokens if token in tokenizer.added_tokens_decoder}


def longest_prompt(context: int, max_new_tokens: int) -> int:
    """Returns the most tokens of a prompt, before a turn of so many tokens; a longer one loses its beginning."""
    return max(context - max_new_tokens, context // 2)


def channel_token(tokenizer: Any) -> int | None:
    """Returns the token with which gpt-oss begins a channel; None for models that have none."""
    token: int | None = tokenizer.convert_tokens_to_ids("<|channel|>")
    return None if token == tokenizer.unk_token_id else token


def told(tokenizer: Any, written: list[int]) -> list[int]:
    """Returns what a model tells its reader, without the thoughts that gpt-oss writes in a channel of their own. The
    tokens that tell the channels apart are special, and would not be in the text."""
    if (channel := channel_token(tokenizer)) is None or channel not in written:
        return written
    message = tokenizer.convert_tokens_to_ids("<|message|>")
    last = written[len(written) - written[::-1].index(channel) :]
    name = last[: last.index(message)] if message in last else last
    return last[len(name) + 1 :] if tokenizer.decode(name).strip().startswith("final") else []


class StopStrings:
    """Says in which rows one of some texts was told to the reader: `Stops` for a decoder.

    It looks at the newest tokens only. A text of n bytes spans at most n tokens, and every step looks.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, strings
        self._window = max(len(string.encode()) for string in strings) + 4
        self._has_channels = channel_token(tokenizer) is not None

    def __call__(self, rows: Sequence[list[int]]) -> list[bool]:
        """Returns it for each row of tokens."""
        if self._has_channels:
            rows = [told(self._tokenizer, row) for row in rows]
        tails = self._tokenizer.batch_decode([row[-self._window :] for row in rows], skip_special_tokens=True)
        return [any(string in tail for string in self._strings) for tail in tails]
