"""mini-swe-agent: the trajectory file of `mini --output`, format mini-swe-agent-1.1.

The file is one JSON object with `info` and `messages`. The messages are those sent to the LLM, each with further facts
in `extra` (mini-swe-agent.com/latest/usage/output_files). The file is rewritten after each step, so an interrupted run
leaves all steps except the last one.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from a2rl.agent_systems.transcripts.reading import Reading, Turn, iso_time, parse_arguments

ENDED_WELL = {"", "Submitted"}


class Response(BaseModel):
    """The LLM's answer."""

    model: str | None = None


Answered = Annotated[Response | None, BeforeValidator(lambda value: value if isinstance(value, dict) else None)]
"""A response that could not be written as JSON is stored as its `repr`."""


class Extra(BaseModel):
    """Further facts about a message."""

    timestamp: Annotated[float, Field(ge=0, le=1e11)] | None = None
    response: Answered = None
    exception_str: str = ""


class Function(BaseModel):
    """The function of a call."""

    name: str
    arguments: str = ""


class Call(BaseModel):
    """A tool call."""

    id: str
    function: Function


class Message(BaseModel):
    """A message of the conversation."""

    role: str
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str = ""
    extra: Extra = Extra()


class Model(BaseModel):
    """The settings of the model."""

    model_name: str | None = None


class Config(BaseModel):
    """The settings of the agent."""

    model: Model = Model()


class Info(BaseModel):
    """Facts about the run."""

    mini_version: str | None = None
    exit_status: str | None = None
    config: Config = Config()


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    reading = Reading()
    document = reading.document(lines)
    messages = document.get("messages", [])
    for value in messages if isinstance(messages, list) else []:
        if (message := reading.fit(value, Message)) is not None:
            _take(reading, message)
    if (info := reading.fit(document.get("info", {}), Info)) is not None:
        reading.agent_version, reading.model = info.mini_version, info.config.model.model_name
        reading.is_done = info.exit_status == "Submitted"
        if (status := info.exit_status or "") not in ENDED_WELL:
            reading.fail(": ".join(filter(None, (status, reading.failure))))
    return reading.finished()


def _take(reading: Reading, message: Message) -> None:
    match message.role:
        case "assistant":
            turn = _answer(reading, message)
            for call in message.tool_calls or ():
                reading.call(turn, call.id, call.function.name, parse_arguments(call.function.arguments))
        case "tool":
            reading.result(message.tool_call_id, message.content or "")
        case "exit":
            reading.fail(message.extra.exception_str or None)
        case "system" | "user":
            if message.extra.response is not None:
                _answer(reading, Message(role="assistant", extra=message.extra))
            source: Literal["system", "user"] = "system" if message.role == "system" else "user"
            reading.turn(source, message.content or "", timestamp=iso_time(message.extra.timestamp))


def _answer(reading: Reading, message: Message) -> Turn:
    """Adds a step of the agent. An answer without a command is stored only in the complaint that follows it."""
    response = message.extra.response
    return reading.turn(
        "agent",
        message.content or "",
        timestamp=iso_time(message.extra.timestamp),
        model=response.model if response else None,
        reasoning=[message.reasoning_content] if message.reasoning_content else [],
    )
