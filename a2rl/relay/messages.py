"""What requests to an LLM ask for, and what its answers say of their cost: whole or streamed, in the dialects of
Anthropic, OpenAI (chat and responses) and Google.

Everything that is read here is hostile: nothing raises, and nothing takes memory without limit.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_COUNT = 2**40
MAX_NAME = 100
MAX_TOOLS = 20
MAX_KEPT = 16 << 20
"""Bytes of an answer, or of one event of it, that are kept to be read."""
SERVER_SIDE = re.compile(
    r"search|fetch|code_?exec|code_?interp|image_?gen|mcp|google|url_?context|maps|browser|retrieval", re.IGNORECASE
)
CLIENT_SIDE = ("function", "custom", "tool_search", "functionDeclarations", "function_declarations")


class Asked(NamedTuple):
    """A request."""

    model: str
    server_tools: tuple[str, ...]
    """Tools that run at the provider, where no sandbox is."""


class Used(NamedTuple):
    """What an answer took, as its provider counts it; cached tokens are part of the prompt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def asked(body: dict[str, Any]) -> Asked:
    """What the body of a request asks for."""
    return Asked(_name(body.get("model")), tuple(dict.fromkeys(_server_tools(body)))[:MAX_TOOLS])


def _server_tools(body: dict[str, Any]) -> Iterator[str]:
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict):
            kinds = [tool["type"]] if isinstance(tool.get("type"), str) else list(tool)  # Google's have no type
            yield from (_name(kind) for kind in kinds if kind not in CLIENT_SIDE and SERVER_SIDE.search(kind))
    for name in ("mcp_servers", "web_search_options", "plugins"):
        if body.get(name):
            yield name


class AnswerReader:
    """Reads an answer as it passes.

    Args:
        is_stream: whether it is one of server-sent events; else it is one JSON text.
    """

    def __init__(self, is_stream: bool) -> None:
        self.model = ""
        """That answered, as the provider names it."""
        self.used: Used | None = None
        """None: the answer did not say."""
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
        """The answer has ended, or was broken off."""
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
        usage = holder.get("usage") or holder.get("usageMetadata")
        if isinstance(usage, dict):
            now, before = _used(usage), self.used or Used()
            # Counts grow from event to event; each dialect names some of them at the beginning only.
            self.used = Used(*map(max, now, before))


def _used(usage: dict[str, Any]) -> Used:
    def count(*names: str) -> int:
        values = (usage.get(name) for name in names)
        return sum(value for value in values if type(value) is int and 0 <= value <= MAX_COUNT)

    return Used(
        count("prompt_tokens")
        + count("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        + count("promptTokenCount", "toolUsePromptTokenCount"),
        count("completion_tokens") + count("output_tokens") + count("candidatesTokenCount", "thoughtsTokenCount"),
    )


def _name(value: object) -> str:
    return value[:MAX_NAME] if isinstance(value, str) else ""
