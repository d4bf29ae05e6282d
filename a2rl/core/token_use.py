"""The tokens of an LLM's answer, read from the `usage` that an API reports, in any dialect.

    tokens_of({"prompt_tokens": 700, "completion_tokens": 50}).total      # 750

All input is untrusted: no function here raises an exception for any input.
"""

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Any, NamedTuple

MAX_COUNT = 2**40
MAX_ITERATIONS = 1000


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

    def most(self, other: "TokenUse") -> "TokenUse":
        """Returns the larger one of each two counts."""
        return TokenUse(*map(max, self, other))

    def plus(self, other: "TokenUse") -> "TokenUse":
        """Returns the sum of each two counts."""
        return TokenUse(*map(add, self, other))


def tokens_of(usage: Mapping[str, Any]) -> TokenUse:
    """Reads the counts of an answer; what is no count is 0.

    Servers that know several dialects give the same count under several names, so the largest of the names counts, not
    their sum.
    """

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


def tokens_beside(usage: Mapping[str, Any]) -> TokenUse:
    """Reads the counts that Anthropic reports beside those of the answer, such as those of a compaction before it."""
    iterations = usage.get("iterations")
    found = [
        tokens_of(each)
        for each in (iterations[:MAX_ITERATIONS] if isinstance(iterations, list) else [])
        if isinstance(each, dict) and each.get("type") != "message"
    ]
    return reduce(TokenUse.plus, found, TokenUse())
