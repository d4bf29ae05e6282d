"""Claude Code: the output of `claude --print --output-format=stream-json --verbose`.

Each line is a JSON object (code.claude.com/docs/en/headless). An answer of the LLM consists of one `assistant` line for
each of its parts, all with the same message id. The prompt is not printed.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel

from a2rl.agent_systems.transcripts.reading import Reading, Turn

SYNTHETIC = "<synthetic>"
"""The `model` of messages that Claude Code writes itself, such as API errors."""


class Init(BaseModel):
    """The first line of a session."""

    session_id: str
    model: str | None = None
    claude_code_version: str | None = None


class ApiRetry(BaseModel):
    """A failed request that Claude Code retries."""

    error_status: int | None = None
    error: str = ""


class Block(BaseModel):
    """A part of a message, of any type."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    content: str | list["Block"] | None = None
    is_error: bool | None = None

    def content_text(self) -> str:
        """Returns the content of a tool result as text."""
        if isinstance(self.content, list):
            return "\n".join(block.text or f"[{block.type}]" for block in self.content)
        return self.content or ""


class Message(BaseModel):
    """A message of the API."""

    id: str = ""
    model: str | None = None
    content: str | list[Block] = ""

    def blocks(self) -> list[Block]:
        """Returns the parts of the message."""
        return [Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class Said(BaseModel):
    """A line of type `assistant` or `user`."""

    type: Literal["assistant", "user"]
    message: Message
    parent_tool_use_id: str | None = None
    timestamp: str | None = None

    def extra(self) -> dict[str, Any] | None:
        """Returns the reference to the subagent's call, if any."""
        return {"parent_tool_use_id": self.parent_tool_use_id} if self.parent_tool_use_id else None


class Denial(BaseModel):
    """A tool call that was not permitted."""

    tool_name: str = ""


class Result(BaseModel):
    """The last line of a session."""

    subtype: str = ""
    is_error: bool = False
    result: str | None = None
    errors: list[str] = []
    terminal_reason: str | None = None
    api_error_status: int | None = None
    permission_denials: list[Denial] = []

    def failure(self, calls: int) -> str | None:
        """Returns why the session failed, if it did. An error of the API may end a session that is called a success,
        and so may the denial of all of its tool calls."""
        if self.is_error or self.subtype.startswith("error") or self.terminal_reason == "api_error":
            words = "\n".join(filter(None, [*self.errors, self.result]))
            return words if self.subtype in {"", "success"} and words else f"{self.subtype}: {words}".removesuffix(": ")
        if calls and len(self.permission_denials) >= calls:
            return (
                f"all tool calls were denied: {', '.join(sorted({each.tool_name for each in self.permission_denials}))}"
            )
        return None


class Session:
    """The log read so far. If a session was resumed, the log contains its attempts one after another."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._calls = self._counted = 0
        """The calls of tools up to the last `result`, and the number of turns in which they are."""

    def take(self, line: dict[str, Any]) -> None:
        """Reads the next line."""
        reading = self.reading
        match line.get("type"), line.get("subtype"):
            case "assistant" | "user", _ if said := reading.fit(line, Said):
                self._hear(said)
            case "system", "init" if init := reading.fit(line, Init):
                reading.session_id, reading.model = init.session_id, init.model
                reading.agent_version = init.claude_code_version
            case "system", "api_retry" if retry := reading.fit(line, ApiRetry):
                reading.fail(f"API Error: {retry.error_status or ''} {retry.error}".strip(), retry.error_status)
            case "result", _ if result := reading.fit(line, Result):
                self._calls += sum(len(turn.calls) for turn in reading.turns[self._counted :])
                self._counted = len(reading.turns)  # not all again: there may be a result after each turn
                reading.fail(result.failure(self._calls), result.api_error_status)
                reading.is_done = result.subtype == "success" and reading.failure is None

    def _hear(self, said: Said) -> None:
        blocks = said.message.blocks()
        if said.type == "user":
            for block in blocks:
                self._told(said, block)
        elif said.message.model == SYNTHETIC:
            for block in blocks:
                self.reading.turn("system", block.text, timestamp=said.timestamp)
        else:
            self.reading.fail(None)  # the retry has succeeded
            self.reading.is_done = False
            message = said.message
            turn = self.reading.answer(message.id, timestamp=said.timestamp, model=message.model, extra=said.extra())
            for block in blocks:
                self._part(turn, block)

    def _told(self, said: Said, block: Block) -> None:
        if block.type == "tool_result":
            extra = {"is_error": True} if block.is_error else {}
            self.reading.result(block.tool_use_id, block.content_text(), **extra)
        elif block.type == "text":
            self.reading.turn("user", block.text, timestamp=said.timestamp, extra=said.extra())

    def _part(self, turn: Turn, block: Block) -> None:
        match block.type:
            case "text":
                turn.message.append(block.text)
            case "thinking":
                turn.reasoning.append(block.thinking)
            case "tool_use":
                self.reading.call(turn, block.id, block.name, block.input)


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    session = Session()
    for line in session.reading.objects(lines):
        session.take(line)
    return session.reading.finished()
