"""Codex CLI: the rollout that it writes below `~/.codex/sessions`, one file a session.

One JSON object a line, `{"timestamp", "type", "payload"}` (github.com/openai/codex, codex-rs/protocol). A resumed
session goes on in the same file. What an answer of the LLM took follows its parts as a `token_usage_record`; cached
tokens are part of the input there. Codex reports no cost.

What `codex exec --json` prints has tokens only in sum, and only if the session ended by itself; but only there it says
what went wrong with requests (github.com/openai/codex, docs/exec.md). Read after the rollouts, it tells of failures.
"""

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel

from a2rl.transcripts.atif import Count, Metrics
from a2rl.transcripts.reading import Draft, Reading, Turn, arguments

SOURCES: dict[str, Literal["system", "user"]] = {"user": "user", "developer": "system", "system": "system"}


class Line(BaseModel):
    """Of a rollout."""

    timestamp: str | None = None
    type: str
    payload: dict[str, Any]


class SessionMeta(BaseModel):
    id: str
    cli_version: str | None = None


class TurnContext(BaseModel):
    model: str


class Usage(BaseModel):
    """OpenAI's: cached tokens are part of the input."""

    input_tokens: Count = 0
    cached_input_tokens: Count = 0
    output_tokens: Count = 0


class TokenUsageRecord(BaseModel):
    usage: Usage


class Part(BaseModel):
    text: str = ""


class Said(BaseModel):
    """A `message`, or `reasoning`, of which only a summary may be readable."""

    role: str = "assistant"
    content: list[Part] | None = None
    summary: list[Part] = []

    def text(self) -> str:
        return "\n".join(part.text for part in (self.content or self.summary) if part.text)


class Call(BaseModel):
    """A `function_call` (arguments: JSON text) or a `custom_tool_call` (input: any text)."""

    call_id: str
    name: str
    arguments: str | None = None
    input: str = ""

    def values(self) -> dict[str, Any]:
        return {"input": self.input} if self.arguments is None else arguments(self.arguments)


class Output(BaseModel):
    call_id: str
    output: str | list[Part] = ""

    def text(self) -> str:
        return self.output if isinstance(self.output, str) else "\n".join(part.text for part in self.output)


class Failure(BaseModel):
    message: str


class TaskComplete(BaseModel):
    error: Failure | None = None


class Printed(BaseModel):
    """A line that Codex prints: `thread.started`, `turn.failed`, `item.completed`, ..."""

    type: str
    message: str | None = None
    error: Failure | None = None
    thread_id: str | None = None


class Session:
    """The rollout read so far."""

    def __init__(self) -> None:
        self.draft = Draft()
        self._answer: Turn | None = None

    def take(self, line: Line) -> None:
        draft, payload = self.draft, line.payload
        match line.type, payload.get("type"):
            case "session_meta", _ if meta := draft.fit(payload, SessionMeta):
                draft.session_id, draft.agent_version = meta.id, meta.cli_version
            case "turn_context", _ if context := draft.fit(payload, TurnContext):
                draft.model = context.model
            case "response_item", "message" | "reasoning":
                self._say(line)
            case "response_item", "function_call" | "custom_tool_call" if call := draft.fit(payload, Call):
                draft.call(self._answering(line), call.call_id, call.name, call.values())
            case "response_item", "function_call_output" | "custom_tool_call_output" if output := draft.fit(
                payload, Output
            ):
                draft.result(output.call_id, output.text())
            case "token_usage_record", _ if record := draft.fit(payload, TokenUsageRecord):
                self._count(line, record.usage)
            case "event_msg", "task_complete" if end := draft.fit(payload, TaskComplete):
                draft.failure = end.error.message if end.error else None

    def hear(self, printed: Printed) -> None:
        match printed.type:
            case "error":
                self.draft.failure = printed.message
            case "turn.failed" if printed.error:
                self.draft.failure = printed.error.message
            case "item.completed" | "turn.completed":
                self.draft.failure = None
            case "thread.started":
                self.draft.session_id = self.draft.session_id or printed.thread_id

    def _say(self, line: Line) -> None:
        if (said := self.draft.fit(line.payload, Said)) is None:
            return
        if line.payload["type"] == "reasoning":
            self._answering(line).reasoning.append(said.text())
        elif said.role in SOURCES:
            self.draft.turn(SOURCES[said.role], said.text(), timestamp=line.timestamp)
        else:
            self._answering(line).message.append(said.text())

    def _answering(self, line: Line) -> Turn:
        """The step of the answer that is coming in."""
        if self._answer is None:
            self._answer = self.draft.turn("agent", timestamp=line.timestamp, model=self.draft.model)
        return self._answer

    def _count(self, line: Line, usage: Usage) -> None:
        """The answer is complete. One without parts (a summary, for example) becomes a step of its own."""
        self._answering(line).metrics = Metrics(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=usage.cached_input_tokens,
        )
        self._answer = None


def read(lines: Iterable[str]) -> Reading:
    """What was said and done, and what it took."""
    session = Session()
    for value in session.draft.objects(lines):
        if "payload" not in value:
            if printed := session.draft.fit(value, Printed):
                session.hear(printed)
        elif line := session.draft.fit(value, Line):
            session.take(line)
    return session.draft.reading()
