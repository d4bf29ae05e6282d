"""OpenHands: the output of agents/openhands/run.py.

Each line is a JSON object. Most are events of the SDK (docs.openhands.dev/sdk/arch/events; openhands/sdk/event in
openhands-sdk 1.58.0), whose `kind` is their class; the script adds `Session` and `Failure`. Actions of one answer share
its `llm_response_id`.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import BaseModel

from a2rl.agent_systems.transcripts.reading import Reading, Turn, parse_arguments


class Text(BaseModel):
    """A piece of content. Pictures have an empty text."""

    text: str = ""


class Message(BaseModel):
    """A message of the conversation."""

    role: str = ""
    content: list[Text] = []
    reasoning_content: str | None = None


class ToolCall(BaseModel):
    """A tool call."""

    id: str
    name: str
    arguments: str = ""


class Observation(BaseModel):
    """The result of a tool call."""

    content: list[Text] = []
    exit_code: int | None = None


class Line(BaseModel):
    """A line of any kind."""

    kind: str
    id: str | None = None
    source: str = ""
    timestamp: str | None = None
    model: str | None = None
    version: str | None = None
    llm_response_id: str | None = None
    system_prompt: Text | None = None
    llm_message: Message | None = None
    thought: list[Text] = []
    reasoning_content: str | None = None
    tool_call: ToolCall | None = None
    tool_call_id: str = ""
    observation: Observation | None = None
    error: str = ""
    rejection_reason: str = ""
    code: str = ""
    detail: str = ""


class Session:
    """The events read so far."""

    def __init__(self) -> None:
        self.reading = Reading()

    def take(self, line: Line) -> None:
        """Reads the next line."""
        reading = self.reading
        match line.kind:
            case "Session":
                reading.session_id, reading.model, reading.agent_version = line.id, line.model, line.version
            case "SystemPromptEvent" if line.system_prompt is not None:
                reading.turn("system", line.system_prompt.text, timestamp=line.timestamp)
            case "MessageEvent" if line.llm_message is not None:
                self._message(line, line.llm_message)
            case "ActionEvent" if line.tool_call is not None:
                turn = self._answer(line, line.thought, line.reasoning_content)
                reading.call(turn, line.tool_call_id, line.tool_call.name, parse_arguments(line.tool_call.arguments))
            case "ObservationEvent" if line.observation is not None:
                reading.result(line.tool_call_id, _text(line.observation.content), **_exit(line.observation))
            case "AgentErrorEvent" | "UserRejectObservation":
                reading.result(line.tool_call_id, line.error or line.rejection_reason)
            case "ConversationErrorEvent" | "Failure":
                reading.fail(f"{line.code}: {line.detail}")

    def _message(self, line: Line, message: Message) -> None:
        if line.source == "agent":
            self._answer(line, message.content, message.reasoning_content)
        else:
            self.reading.turn("user", _text(message.content), timestamp=line.timestamp)

    def _answer(self, line: Line, said: list[Text], reasoning: str | None) -> Turn:
        """Returns the step for the answer that an event belongs to. The first event contains the answer's text."""
        self.reading.fail(None)  # the agent continued after the error
        key = line.llm_response_id or ""
        begin = partial(self.reading.answer, key) if key else partial(self.reading.turn, "agent")
        return begin(
            _text(said),
            timestamp=line.timestamp,
            model=self.reading.model,
            reasoning=[reasoning] if reasoning else [],
        )


def _text(pieces: list[Text]) -> str:
    return "\n".join(piece.text for piece in pieces if piece.text)


def _exit(observation: Observation) -> dict[str, Any]:
    return {} if observation.exit_code is None else {"exit_code": observation.exit_code}


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    session = Session()
    for line in session.reading.fitting(lines, Line):
        session.take(line)
    return session.reading.finished()
