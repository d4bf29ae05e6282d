"""Requests and replies of the driver, independent of the protocol."""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from a2rl.mock_llm.scenario import Usage

Json = dict[str, Any]
Role = Literal["user", "assistant"]
PIECE = 48
"""Number of characters in a streamed piece of text."""


class Tool(NamedTuple):
    """A tool that the CLI offers."""

    name: str
    schema: Json
    """JSON schema of its arguments."""


class Call(NamedTuple):
    """A tool call of the driver."""

    name: str
    arguments: Json


@dataclass(frozen=True)
class Message:
    """One message of the conversation so far. Tool results are messages of the user."""

    role: Role
    text: str
    """The whole content, including tool results and arguments."""
    calls: tuple[str, ...] = ()
    """Names of the tools that the message calls."""


@dataclass(frozen=True)
class LlmRequest:
    """A request for the next answer."""

    model: str
    stream: bool
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    preamble: str = ""
    """The system prompt and the tools' definitions."""
    json_schema: Json | None = None
    """The schema of the answer, if the answer must be JSON."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options that the protocol needs for its answer."""


@dataclass(frozen=True)
class Reply:
    """The driver's answer."""

    say: str
    call: Call | None
    usage: Usage
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Dialect(Protocol):
    """The functions of a module that implements one provider's API."""

    PROTOCOL: str

    def read(self, body: Json) -> LlmRequest:
        """Reads a request; raises KeyError, TypeError, ValueError or AttributeError if it is malformed."""

    def whole(self, asked: LlmRequest, reply: Reply) -> Json:
        """Returns the complete answer."""

    def events(self, asked: LlmRequest, reply: Reply) -> Iterator[str]:
        """Yields the answer as server-sent events."""

    def error(self, status: int, message: str) -> Json:
        """Returns the body of an error answer."""


def pieces(text: str) -> list[str]:
    """Splits a text into the pieces in which it is streamed."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def event(data: Json | str, name: str = "") -> str:
    """Formats one server-sent event."""
    body = data if isinstance(data, str) else compact(data)
    return f"event: {name}\ndata: {body}\n\n" if name else f"data: {body}\n\n"


def compact(value: Any) -> str:
    """Formats a value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_of(content: Any) -> str:
    """Returns the text of a message's content, which is a string, a list of parts or None."""
    if content is None:
        return ""
    return content if isinstance(content, str) else compact(content)
