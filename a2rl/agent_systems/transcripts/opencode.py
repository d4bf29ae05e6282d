"""OpenCode: the output of `opencode run --format json`.

Each line is a JSON object (opencode.ai/docs/cli, github.com/sst/opencode, packages/opencode/src/cli/cmd/run.ts): a part
of one of the session's messages, printed when it is complete, or an error. The parts of an answer share a message id.
The prompt and the model are not printed, and neither are the sessions of subagents or a tool call that is cut off.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, Field

from a2rl.agent_systems.transcripts.reading import Reading, iso_time

END_OF_CALENDAR_MS = 253_402_300_799_000
CUT_OFF = {
    "length": "an answer reached the model's maximum length",
    "content-filter": "the content filter of the API ended an answer",
}
"""Ends of an answer after which OpenCode stops, without an error."""


class State(BaseModel):
    """The outcome of a tool call."""

    status: str = ""
    input: dict[str, Any] = {}
    output: str | None = None
    error: str | None = None


class Part(BaseModel):
    """A part of a message, of any type."""

    message_id: str = Field(alias="messageID")
    text: str = ""
    call_id: str = Field(default="", alias="callID")
    tool: str = ""
    state: State = State()
    reason: str = ""
    """Why an answer has ended: stop, tool-calls, length, ..."""


class ErrorData(BaseModel):
    """The details of an error."""

    message: str = ""
    status_code: int | None = Field(default=None, alias="statusCode")


class Failure(BaseModel):
    """An error."""

    name: str = "error"
    data: ErrorData = ErrorData()

    def words(self) -> str:
        """Returns the error as text."""
        return f"{self.name}: {self.data.message}"


class Event(BaseModel):
    """A printed line."""

    type: str
    timestamp: Annotated[int, Field(ge=0, le=END_OF_CALENDAR_MS)] | None = None
    session_id: str | None = Field(default=None, alias="sessionID")
    part: Part | None = None
    error: Failure | None = None


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    reading = Reading()
    for event in reading.fitting(lines, Event):
        _take(reading, event)
    return reading.finished()


def _take(reading: Reading, event: Event) -> None:
    reading.session_id = event.session_id or reading.session_id
    if event.error:
        reading.fail(event.error.words(), event.error.data.status_code)
    if (part := event.part) is None:
        return
    turn = reading.answer(part.message_id, timestamp=iso_time(event.timestamp and event.timestamp / 1000))
    match event.type:
        case "step_start":
            reading.fail(None)  # the agent continued after the error
        case "text":
            turn.message.append(part.text)
        case "reasoning":
            turn.reasoning.append(part.text)
        case "tool_use":
            reading.call(turn, part.call_id, part.tool, part.state.input)
            reading.result(part.call_id, part.state.output or part.state.error or "", status=part.state.status)
        case "step_finish":
            reading.is_done = part.reason == "stop"
            if part.reason in CUT_OFF:
                reading.fail(CUT_OFF[part.reason])
