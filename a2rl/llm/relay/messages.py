"""Reads requests to an LLM and the token counts of its answers, whole or streamed, in the dialects of Anthropic, OpenAI
(chat and responses) and Google.

All input is untrusted: no function here raises an exception for any input, and the memory used is limited.
"""

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

from a2rl.llm.relay.allowed import beyond_text

MAX_COUNT = 2**40
MAX_NAME = 100
MAX_TOOLS = 20
MAX_KEPT = 16 << 20
"""The number of bytes that are buffered of an answer, or of one event in it."""
SamplingValue = str | int | float | bool
SAMPLING_GROUPS = {
    "thinking": ("type", "budget_tokens"),
    "reasoning": ("effort", "summary"),
    "generationConfig": ("temperature", "topP", "topK", "maxOutputTokens", "seed", "thinkingBudget", "thinkingLevel"),
    "text": ("verbosity",),
}
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "max_output_tokens", "seed", "n",
    "presence_penalty", "frequency_penalty", "reasoning_effort", "verbosity", "service_tier", *SAMPLING_GROUPS,
)  # fmt: skip
"""The settings that are recorded. What Google nests in `thinkingConfig` is taken for a part of `generationConfig`."""
TIERS = {"service_tier": "service_tier", "serviceTier": "service_tier", "speed": "speed"}
"""Where dialects say at which tier of the service they answer, and the name of that in the table of prices."""


class ParsedRequest(NamedTuple):
    """What a request asks for."""

    model: str
    server_tools: tuple[str, ...]
    """What it asks of the provider's servers besides text, outside the sandbox."""
    sampling: Mapping[str, SamplingValue] = MappingProxyType({})
    """How the model is to answer, by the names in the request, such as `temperature` or `thinking.budget_tokens`."""


class TokenUse(NamedTuple):
    """The tokens of an answer as counted by the provider."""

    prompt_tokens: int = 0
    """All tokens that went in, those that were read from a cache or written to one included."""
    completion_tokens: int = 0
    """All tokens that came out, those of the reasoning included."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """Those of `cache_write_tokens` that Anthropic keeps for an hour, at a higher price."""

    @property
    def total(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


def parse_request(path: str, body: dict[str, Any]) -> ParsedRequest:
    """Returns what a request asks for; `path` is that of the API, without the part that the provider adds."""
    tools = tuple(name[:MAX_NAME] for name in sorted(beyond_text(path, body))[:MAX_TOOLS])
    return ParsedRequest(_name(body.get("model")), tools, dict(_sampling(body)))


def _sampling(body: dict[str, Any]) -> Iterator[tuple[str, SamplingValue]]:
    """Yields the settings of the answer, also those in the groups that some dialects have for them."""
    for name in SAMPLING:
        value = body.get(name)
        if isinstance(value, dict) and name in SAMPLING_GROUPS:
            inner = {**value, **{k: v for k, v in _group(value, "thinkingConfig").items() if k not in value}}
            known = {part: inner[part] for part in SAMPLING_GROUPS[name] if part in inner}
            yield from ((f"{name}.{part}", each) for part, each in known.items() if _is_setting(each))
        elif _is_setting(value):
            yield name, value


def _group(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _is_setting(value: object) -> TypeGuard[SamplingValue]:
    if isinstance(value, str):
        return len(value) <= MAX_NAME
    return isinstance(value, bool | int | float) and abs(value) <= MAX_COUNT


class AnswerReader:
    """Reads an answer as it passes.

    Args:
        is_stream: Whether it consists of server-sent events; otherwise it is one JSON text.
    """

    def __init__(self, is_stream: bool) -> None:
        self.model = ""
        """The model that answered, as named by the provider."""
        self.used: TokenUse | None = None
        """The tokens used; None if the answer did not report them."""
        self.tier: dict[str, str] = {}
        """The tier of the service that answered, which decides the price; empty if the answer does not say it."""
        self.has_error = False
        """Whether it reports an error, as a stream does that began well."""
        self.bytes = 0
        self.is_stream = is_stream
        self._kept = bytearray()
        self._is_cut = False

    def feed(self, piece: bytes) -> None:
        """Takes the next piece."""
        self.bytes += len(piece)
        head, newline, tail = piece.rpartition(b"\n") if self.is_stream else (b"", b"", piece)
        if newline:
            self._keep(head)
            self._read_events()
        self._keep(tail)

    def close(self) -> None:
        """Reads the rest, when the answer has ended or was aborted."""
        if self.is_stream:
            self._read_events()
        elif not self._is_cut:
            self._read(bytes(self._kept))
        self._kept.clear()

    def _keep(self, piece: bytes) -> None:
        if len(self._kept) + len(piece) <= MAX_KEPT:
            self._kept += piece
        else:
            self._is_cut = True

    def _read_events(self) -> None:
        if not self._is_cut:
            for line in self._kept.splitlines():
                if line.startswith(b"data:"):
                    self._read(bytes(line[5:]))
        self._kept.clear()
        self._is_cut = False

    def _read(self, text: bytes) -> None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return  # such as [DONE]
        for event in value if isinstance(value, list) else [value]:
            if isinstance(event, dict):
                for holder in (event, event.get("message"), event.get("response")):
                    if isinstance(holder, dict):
                        self._take(holder)

    def _take(self, holder: dict[str, Any]) -> None:
        self.model = _name(holder.get("model") or holder.get("modelVersion")) or self.model
        self.has_error |= bool(holder.get("error"))
        for usage in (holder.get("usage"), holder.get("usageMetadata")):
            if isinstance(usage, dict):
                now, before = _used(usage), self.used or TokenUse()
                # Counts grow from event to event. In each dialect, some of them are reported only at the beginning.
                self.used = TokenUse(*map(max, now, before))
                self.tier |= tier_of(usage)
        self.tier |= tier_of(holder)


def tier_of(body: dict[str, Any]) -> dict[str, str]:
    """Returns the tier of the service that a request asks for, or that an answer names. `auto` names none."""
    named = {key: _name(body.get(name)).lower() for name, key in TIERS.items() if body.get(name)}
    return {key: tier for key, tier in named.items() if tier not in ("", "auto")}


def _used(usage: dict[str, Any]) -> TokenUse:
    """Reads the counts of an answer. Servers that know several dialects give the same count under several names, so the
    largest of the names counts, not their sum."""

    def count(*path: str) -> int:
        value: Any = usage
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value if type(value) is int and 0 <= value <= MAX_COUNT else 0

    # OpenAI and Google count cached tokens inside of the prompt, Anthropic beside it.
    created, read = count("cache_creation_input_tokens"), count("cache_read_input_tokens")
    is_inside = "prompt_tokens" in usage or "input_tokens_details" in usage
    prompt = max(
        count("prompt_tokens"),
        count("input_tokens") + (0 if is_inside else created + read),
        count("promptTokenCount") + count("toolUsePromptTokenCount"),
    )
    completion = max(
        count("completion_tokens"),
        count("output_tokens"),
        count("candidatesTokenCount") + count("thoughtsTokenCount"),
        # xAI counts the reasoning beside the completion, and only its total shows that.
        count("total_tokens") - prompt if "prompt_tokens" in usage else 0,
    )
    details = ("prompt_tokens_details", "input_tokens_details")
    return TokenUse(
        prompt,
        completion,
        max(read, count("cachedContentTokenCount"), *(count(each, "cached_tokens") for each in details)),
        max(created, *(count(each, "cache_write_tokens") for each in details)),
        count("cache_creation", "ephemeral_1h_input_tokens"),
    )


def _name(value: object) -> str:
    return value[:MAX_NAME] if isinstance(value, str) else ""
