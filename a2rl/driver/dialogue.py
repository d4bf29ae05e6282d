"""What a request asks and what the driver replies, whatever protocol carries them."""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from a2rl.driver.scenario import Usage

Json = dict[str, Any]
Role = Literal["user", "assistant"]
PIECE = 48
"""Characters of a streamed piece of text."""


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
    """One message of the conversation so far. Results of tools are messages of the user."""

    role: Role
    text: str
    """All that it holds, tool results and arguments included."""
    calls: tuple[str, ...] = ()
    """The tools that it calls."""


@dataclass(frozen=True)
class Asked:
    """A request for the next answer."""

    model: str
    stream: bool
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    preamble: str = ""
    """What stands before the conversation: the system prompt and the tools' definitions."""
    json_schema: Json | None = None
    """Where the answer must be JSON: of this form."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else a protocol needs to know for its answer."""


@dataclass(frozen=True)
class Reply:
    """The driver's answer."""

    say: str
    call: Call | None
    usage: Usage
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Dialect(Protocol):
    """A provider's API: one module each, whose functions these are."""

    PROTOCOL: str

    def read(self, body: Json) -> Asked:
        """What a request asks. KeyError, TypeError, ValueError or AttributeError where it is malformed."""

    def whole(self, asked: Asked, reply: Reply) -> Json:
        """The answer in one piece."""

    def events(self, asked: Asked, reply: Reply) -> Iterator[str]:
        """The answer as server-sent events."""

    def error(self, status: int, message: str) -> Json:
        """The body of a refusal."""


def pieces(text: str) -> list[str]:
    """A text as it is streamed."""
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def event(data: Json | str, name: str = "") -> str:
    """One server-sent event."""
    body = data if isinstance(data, str) else compact(data)
    return f"event: {name}\ndata: {body}\n\n" if name else f"data: {body}\n\n"


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    return content if isinstance(content, str) else "" if content is None else compact(content)
