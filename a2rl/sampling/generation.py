"""How models answer the items of an eval set: the settings, and a sampler that applies them to every call of a task.

A task gives its own limit and stop strings and knows nothing of these settings, so that all tasks honour them alike.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from a2rl.sampling import (
    NO_KWARGS,
    Completion,
    Conversation,
    Prompt,
    Sampler,
    SamplerAround,
    SamplingParams,
    translated,
)

T = TypeVar("T")
REASONING_BEGINS, REASONING_ENDS = "<think>", "</think>"
OURS = frozenset({
    "conversation", "messages", "chat_template", "tokenize", "add_generation_prompt", "return_dict", "return_tensors",
    "strftime_now",
})  # fmt: skip
"""Arguments of `apply_chat_template` that are not the user's to choose."""


class Generation(BaseModel):
    """How a model answers. What is not given is decided by the family of the model, and otherwise as here."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: float = Field(default=0.0, ge=0, le=10)
    """0: the most likely token each time."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0: all tokens."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """The most tokens of an answer, or of one turn; None: the task's own limit."""
    chat_template_kwargs: dict[str, JsonValue] = {}
    strip_reasoning: bool = False
    """Whether `<think>...</think>` is removed before an answer is graded; a task's stop strings then count after it."""
    samples: int = Field(default=1, ge=1, le=100)
    """How often each item is answered; an item's value is the mean."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Reads `temperature=0.6,chat_template_kwargs.enable_thinking=true`, as on the command line."""
        if not isinstance(value, str):
            return value
        found: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {}
        for part in filter(None, map(str.strip, value.split(","))):
            name, is_pair, text = part.partition("=")
            if not is_pair:
                raise ValueError(f"{part!r} is not of the form name=value, such as temperature=0.6,top_p=0.95")
            group, _, key = name.strip().partition(".")
            (nested.setdefault(group, {}) if key else found)[key or group] = _value(text)
        return found | nested

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_the_templates(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(OURS & value.keys()):
            raise ValueError(f"{taken[0]} is decided by the grader: give only arguments of the template's own")
        return value

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples > 1 and "temperature" in self.model_fields_set and self.temperature == 0:
            raise ValueError("samples above 1 need a temperature above 0: greedy answers are all the same")
        return self

    def over(self, other: "Generation") -> "Generation":
        """Returns these settings where they are given, and the other ones elsewhere."""
        return Generation.model_validate(other.model_dump(exclude_unset=True) | self.model_dump(exclude_unset=True))

    def complete(self) -> "Generation":
        """Returns the same settings with none left open.

        Raises:
            ValidationError: Settings from several places contradict each other.
        """
        return Generation.model_validate(self.model_dump())

    @property
    def note(self) -> str:
        """The remark that belongs next to scores of sampled answers; empty for greedy ones."""
        if self.temperature == 0:
            return ""
        if self.samples == 1:
            return "answers are drawn at random, once for each item: grading again would give another score"
        return f"answers are drawn at random, {self.samples} for each item; the intervals include that"

    def in_words(self) -> str:
        """Returns the settings as a phrase."""
        drawn = f"sampled at temperature {self.temperature:g}" if self.temperature else "greedy"
        if self.temperature and self.top_p < 1:
            drawn += f", top_p {self.top_p:g}"
        if self.temperature and self.top_k:
            drawn += f", top_k {self.top_k}"
        length = f"at most {self.max_new_tokens:,} new tokens" if self.max_new_tokens else "within the task's limit"
        parts = [drawn, length]
        parts += [f"the chat template gets {name}={value}" for name, value in self.chat_template_kwargs.items()]
        if self.strip_reasoning:
            parts.append(f"{REASONING_BEGINS}...{REASONING_ENDS} is removed before grading")
        if self.samples > 1:
            parts.append(f"the mean of {self.samples} answers")
        return "; ".join(parts)

    def __str__(self) -> str:
        given = self.model_dump(exclude_unset=True)
        return ", ".join(f"{name} {value}" for name, value in given.items()) or "-"


class GeneratingSampler(SamplerAround):
    """A sampler that answers as the settings say, whatever a task asks for; see `a2rl.sampling.Sampler`."""

    def __init__(self, sampler: Sampler, generation: Generation, seed: int) -> None:
        self._sampler, self._generation, self._seed = sampler, generation, seed

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        """See `Sampler`."""
        return self._sampler.room_after(prompt, {**self._generation.chat_template_kwargs, **chat_template_kwargs})

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """See `Sampler`."""
        if not self._generation.strip_reasoning:
            return self._sampler.converse(conversations, self._params(params))
        without = [_without_reasoning(each, params.stop) for each in conversations]
        # A stop string inside the reasoning must not end the answer. They apply to what is left of it.
        return self._sampler.converse(without, replace(self._params(params), stop=()))

    def _params(self, params: SamplingParams) -> SamplingParams:
        chosen = self._generation
        return replace(
            params,
            max_new_tokens=chosen.max_new_tokens or params.max_new_tokens,
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            top_k=chosen.top_k,
            chat_template_kwargs=chosen.chat_template_kwargs,
            seed=self._seed,
        )


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{text!r} is not a value: give a number, true, false or a word") from error


def _without_reasoning(conversation: Conversation[T], stop: Sequence[str]) -> Conversation[T]:
    """The same conversation, whose caller is sent answers without reasoning and up to the first stop string."""

    def ask(prompt: Prompt) -> Generator[Prompt, Completion, Completion]:
        completion = yield prompt
        return replace(completion, text=answer_in(completion.text)).until(stop)

    return translated(conversation, ask)


def answer_in(text: str) -> str:
    """Returns a text without its reasoning, as `extract-non-reasoning-content` of OpenCompass does.

    Without the beginning (which some chat templates write), everything up to the last end is reasoning. Reasoning
    without an end is left in place.
    """
    if REASONING_ENDS not in text:
        return text
    if REASONING_BEGINS not in text:
        return text.rpartition(REASONING_ENDS)[2].strip()
    *ended, rest = text.split(REASONING_ENDS)
    kept = (
        part.partition(REASONING_BEGINS)[0] if REASONING_BEGINS in part else part + REASONING_ENDS for part in ended
    )
    return "".join([*kept, rest]).strip()
