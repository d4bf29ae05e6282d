"""Codex CLI: the rollout files in `~/.codex/sessions`, one for each session.

Each line is a JSON object, `{"timestamp", "type", "payload"}` (github.com/openai/codex, codex-rs/protocol). A resumed
session continues the same file. The parts of an LLM's answer are followed by a `token_usage_record`.

Only the output of `codex exec --json` says why requests failed (github.com/openai/codex, docs/exec.md). So it is read
after the rollouts, for the failures.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel

from a2rl.agent_systems.transcripts.reading import Reading, Turn, parse_arguments

SOURCES: dict[str, Literal["system", "user"]] = {"user": "user", "developer": "system", "system": "system"}


class Line(BaseModel):
    """A line of a rollout file."""

    timestamp: str | None = None
    type: str
    payload: dict[str, Any]


class SessionMeta(BaseModel):
    """The first line of a rollout."""

    id: str
    cli_version: str | None = None


class TurnContext(BaseModel):
    """The settings of a turn."""

    model: str


class Part(BaseModel):
    """A part of a message."""

    text: str = ""


class Said(BaseModel):
    """A `message`, or a `reasoning` item, of which sometimes only a summary is readable."""

    role: str = "assistant"
    content: list[Part] | None = None
    summary: list[Part] = []

    def text(self) -> str:
        """Returns the readable text."""
        return "\n".join(part.text for part in (self.content or self.summary) if part.text)


class Call(BaseModel):
    """A `function_call` (arguments: JSON text) or a `custom_tool_call` (input: any text)."""

    call_id: str
    name: str
    arguments: str | None = None
    input: str = ""

    def values(self) -> dict[str, Any]:
        """Returns the arguments of the call."""
        return {"input": self.input} if self.arguments is None else parse_arguments(self.arguments)


class Output(BaseModel):
    """The result of a call."""

    call_id: str
    output: str | list[Part] = ""

    def text(self) -> str:
        """Returns the output as text."""
        return self.output if isinstance(self.output, str) else "\n".join(part.text for part in self.output)


class Failure(BaseModel):
    """An error."""

    message: str


class TaskComplete(BaseModel):
    """The end of a task."""

    error: Failure | None = None


class Item(BaseModel):
    """Something that was said or done."""

    type: str = ""


class Printed(BaseModel):
    """A line that Codex prints: `thread.started`, `turn.failed`, `item.completed`, ..."""

    type: str
    message: str | None = None
    error: Failure | None = None
    item: Item = Item()
    thread_id: str | None = None


class Session:
    """The rollout read so far."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._answer: Turn | None = None

    def take(self, line: Line) -> None:
        """Reads the next line of a rollout."""
        reading, payload = self.reading, line.payload
        match line.type, payload.get("type"):
            case "session_meta", _ if meta := reading.fit(payload, SessionMeta):
                reading.session_id = reading.session_id or meta.id  # later ids belong to its subagents
                reading.agent_version = meta.cli_version
            case "turn_context", _ if context := reading.fit(payload, TurnContext):
                reading.model = context.model
            case "response_item", "message" | "reasoning":
                self._say(line)
            case "response_item", "function_call" | "custom_tool_call" if call := reading.fit(payload, Call):
                reading.call(self._answering(line), call.call_id, call.name, call.values())
            case "response_item", "function_call_output" | "custom_tool_call_output" if output := reading.fit(
                payload, Output
            ):
                reading.result(output.call_id, output.text())
            case "token_usage_record", _:
                self._answer = None
            case "event_msg", "task_started":
                reading.is_done = False
            case "event_msg", "task_complete" if end := reading.fit(payload, TaskComplete):
                reading.fail(end.error.message if end.error else None)
                reading.is_done = end.error is None
            case "event_msg", "turn_aborted":
                reading.fail(f"the turn was aborted: {payload.get('reason')}")

    def hear(self, printed: Printed) -> None:
        """Reads the next printed line."""
        match printed.type:
            case "error":
                self.reading.fail(printed.message)
            case "turn.failed":
                self.reading.fail(printed.error.message if printed.error else self.reading.failure or "the turn failed")
            case "item.completed" if printed.item.type != "error":
                self.reading.fail(None)
            case "turn.completed":
                self.reading.fail(None)
                self.reading.is_done = True
            case "turn.started":
                self.reading.is_done = False
            case "thread.started":
                self.reading.session_id = self.reading.session_id or printed.thread_id

    def _say(self, line: Line) -> None:
        if (said := self.reading.fit(line.payload, Said)) is None:
            return
        if line.payload["type"] == "reasoning":
            self._answering(line).reasoning.append(said.text())
        elif said.role in SOURCES:
            self.reading.turn(SOURCES[said.role], said.text(), timestamp=line.timestamp)
        else:
            self._answering(line).message.append(said.text())

    def _answering(self, line: Line) -> Turn:
        """Returns the step of the current answer. The first part of an answer begins a new step."""
        if self._answer is None:
            self._answer = self.reading.turn("agent", timestamp=line.timestamp, model=self.reading.model)
        return self._answer


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    session = Session()
    for value in session.reading.objects(lines):
        if "payload" not in value:
            if printed := session.reading.fit(value, Printed):
                session.hear(printed)
        elif line := session.reading.fit(value, Line):
            session.take(line)
    return session.reading.finished()
