"""Gemini CLI: the session files in `~/.gemini/tmp/<project>/chats`, one for each session.

Each line is a JSON object (github.com/google-gemini/gemini-cli, packages/core/src/services/chatRecordingService.ts): a
header, a message, or a `$set` that changes the record. When the tool calls of a message have ended, the message is
written again with the same id; the last version counts. A resumed session continues the same file (and the new start
leaves another file, without answers).

Only the output of `--output-format stream-json` (geminicli.com/docs/cli/headless) names the error that ended a session.
It is read after the session files.
"""

import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel, Field

from a2rl.agent_systems.transcripts.reading import Reading, Turn

SOURCES: dict[str, Literal["system", "user", "agent"]] = {"user": "user", "gemini": "agent"}
"""All other types of messages are notices of the CLI itself."""


class Header(BaseModel):
    """The first line of a session file."""

    session_id: str = Field(alias="sessionId")


class FunctionResponse(BaseModel):
    """The result of a tool call."""

    response: dict[str, Any] = {}

    def text(self) -> str:
        """Returns the result as the LLM got it."""
        for name in ("output", "error"):
            if isinstance(told := self.response.get(name), str):
                return told
        return json.dumps(self.response, ensure_ascii=False)


class Part(BaseModel):
    """A part of a message."""

    text: str | None = None
    function_response: FunctionResponse | None = Field(default=None, alias="functionResponse")


class Thought(BaseModel):
    """A summary of the model's reasoning."""

    subject: str = ""
    description: str = ""


class ToolCall(BaseModel):
    """A tool call with its result."""

    id: str
    name: str
    args: dict[str, Any] = {}
    result: list[Part] | None = None
    status: str = ""


class Message(BaseModel):
    """A message of the session."""

    id: str
    timestamp: str | None = None
    type: str
    content: str | list[Part] = ""
    thoughts: list[Thought] = []
    model: str | None = None
    tool_calls: list[ToolCall] = Field(default=[], alias="toolCalls")

    def text(self) -> str:
        """Returns the text of the message."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if part.text)


class Change(BaseModel):
    """The content of a `$set`. At the start, on resuming and after a summary, it contains messages."""

    messages: list[Any] = []


class Failure(BaseModel):
    """An error."""

    message: str = ""


class Printed(BaseModel):
    """A line that Gemini CLI prints: `init`, `message`, `tool_use`, `tool_result`, `error`, `result`."""

    type: str
    session_id: str | None = None
    role: str = ""
    status: str = ""
    message: str = ""
    error: Failure | None = None


class Session:
    """The messages read so far, in the order in which they first appeared."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._messages: dict[str, Message] = {}

    def take(self, line: dict[str, Any]) -> None:
        """Reads the next line."""
        reading = self.reading
        if "sessionId" in line:
            header = reading.fit(line, Header)
            reading.session_id = header.session_id if header else reading.session_id
        elif "$set" in line:
            change = reading.fit(line["$set"], Change)
            for each in change.messages if change else []:
                if (message := reading.fit(each, Message)) is not None:
                    self._messages.setdefault(message.id, message)
        elif "id" not in line:
            if (printed := reading.fit(line, Printed)) is not None:
                self._hear(printed)
        elif (message := reading.fit(line, Message)) is not None:
            self._messages[message.id] = message

    def finished(self) -> Reading:
        """Returns what has been read."""
        for message in self._messages.values():
            self._tell(message)
        return self.reading.finished()

    def _hear(self, printed: Printed) -> None:
        self.reading.session_id = self.reading.session_id or printed.session_id
        if printed.type == "init" or (printed.type in {"message", "tool_use"} and printed.role != "user"):
            self.reading.fail(None)
            self.reading.is_done = False
        elif printed.type == "error":  # its turn limit and loops are no error of the result
            self.reading.fail(printed.message or None)
        elif printed.type == "result":
            if printed.error or printed.status == "error":
                self.reading.fail((printed.error.message if printed.error else "") or self.reading.failure or "error")
            self.reading.is_done = self.reading.failure is None

    def _tell(self, message: Message) -> None:
        source = SOURCES.get(message.type, "system")
        text = message.text()
        if source != "agent" and not text:
            return  # results of tools, which are also stored with their calls
        turn = self.reading.turn(source, text, timestamp=message.timestamp, model=message.model)
        if source == "agent":
            self._tell_work(turn, message)

    def _tell_work(self, turn: Turn, message: Message) -> None:
        self.reading.model = message.model or self.reading.model
        turn.reasoning = [f"{each.subject}\n{each.description}".strip() for each in message.thoughts]
        for call in message.tool_calls:
            self.reading.call(turn, call.id, call.name, call.args)
            if call.result is not None:
                told = [part.function_response.text() for part in call.result if part.function_response]
                self.reading.result(call.id, "\n".join(told), **({"status": call.status} if call.status else {}))


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    session = Session()
    for line in session.reading.objects(lines):
        session.take(line)
    return session.finished()
