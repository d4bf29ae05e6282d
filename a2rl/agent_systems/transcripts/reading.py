"""The common result of reading a transcript, and how the readings of a run are joined into one trajectory.

Transcripts are untrusted: an agent can write anything into them. The reader of a format declares pydantic models for
the parts that it uses, and reads through a `Reading`, which returns only what fits those models and counts the rest as
unreadable. Whatever a transcript contains, reading it raises no exception, uses limited memory, and produces a
trajectory that can be written as JSON. We use no library: each agent system has its own format, and none of them
publishes a reader in Python.

def read(lines: Iterable[str]) -> Reading:
    reading = Reading()
    for line in reading.fitting(lines, Said):
        reading.turn("agent", line.text)
    return reading.finished()
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from a2rl.agent_systems.transcripts.atif import (
    MAX_COUNT,
    Agent,
    FinalMetrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
)
from a2rl.agent_systems.transcripts.ending import Account
from a2rl.core.model_text import encodable

MAX_LINE_CHARS = 8 << 20
MAX_DOCUMENT_CHARS = 64 << 20
MAX_VALUES = 2_000_000
"""Limit on the values in one JSON text. Millions of empty lists would need a hundred times the memory of their text."""
MAX_TEXT_CHARS = 200_000
"""Limit on the length of one message or result. Longer ones are cut off."""
MAX_STEPS = 100_000
MAX_DEPTH = 32
"""Limit on the nesting of objects. Deeper ones could not be written as JSON again."""
MAX_STRAY_CHARS = 4_000
CUT = " [... cut]"

Shape = TypeVar("Shape", bound=BaseModel)


@dataclass
class Turn:
    """A step that is not finished yet."""

    source: Literal["system", "user", "agent"]
    message: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[ObservationResult] = field(default_factory=list)
    timestamp: str | None = None
    model: str | None = None
    extra: dict[str, Any] | None = None

    def step(self, number: int) -> Step:
        """Returns the finished step with this number."""
        acts = self.source == "agent"
        return Step(
            step_id=number,
            source=self.source,
            timestamp=self.timestamp,
            message=cut("\n".join(self.message)),
            model_name=self.model if acts else None,
            reasoning_content=cut("\n".join(self.reasoning)) if acts and self.reasoning else None,
            tool_calls=tuple(self.calls) or None,
            observation=Observation(results=tuple(self.results)) if self.results else None,
            extra=self.extra,
        )


@dataclass
class Reading:
    """One attempt of an agent system, as recorded in its own transcript. The reader of a format adds what happened, in
    order; `finished` makes the steps."""

    steps: tuple[Step, ...] = ()
    session_id: str | None = None
    """The id with which the agent system can resume the session."""
    model: str | None = None
    agent_version: str | None = None
    failure: str | None = None
    """The error that ended the attempt, or that was not resolved when it ended, in the agent system's words."""
    status: int | None = None
    """The HTTP status of that error, if it has a field of its own."""
    is_done: bool = False
    """Whether the agent system says that the work was completed."""
    unreadable: int = 0
    """Lines that could not be understood."""
    stray: str = ""
    """The end of the output that is not part of the transcript but was printed between its lines."""
    turns: list[Turn] = field(default_factory=list)
    """The steps that are not finished yet."""
    _asked: dict[str, Turn] = field(default_factory=dict)
    _answers: dict[str, Turn] = field(default_factory=dict)

    def account(self) -> Account:
        """Returns what it says about the end."""
        return Account(
            failure=(self.failure or "")[:MAX_STRAY_CHARS],
            status=self.status,
            is_done=self.is_done,
            # A file that was cut off while it was written says nothing about what was done.
            has_acted=any(step.source == "agent" and (step.message or step.tool_calls) for step in self.steps)
            or bool(self.unreadable and not self.steps and not self.stray),
            stray=self.stray,
        )

    def objects(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yields the lines that are JSON objects, and counts the others as unreadable."""
        for line in lines:
            if line.strip() and (value := self._parsed(line, MAX_LINE_CHARS)) is not None:
                yield value

    def fitting(self, lines: Iterable[str], shape: type[Shape]) -> Iterator[Shape]:
        """Yields the lines that are JSON objects and fit the model `shape`, and counts the others as unreadable."""
        for value in self.objects(lines):
            if (line := self.fit(value, shape)) is not None:
                yield line

    def document(self, lines: Iterable[str]) -> dict[str, Any]:
        """Reads a transcript that is a single JSON object, not one object per line."""
        text = "".join(lines)
        if not text.strip():
            return {}
        try:
            return _json_object(text, MAX_DOCUMENT_CHARS)
        except (ValueError, RecursionError):
            self.unreadable += 1
            return {}

    def fit(self, value: object, shape: type[Shape]) -> Shape | None:
        """Returns the value as an instance of the model `shape`. If it does not fit, it is counted, and None is
        returned."""
        try:
            return shape.model_validate(value)
        except ValidationError:
            self.unreadable += 1
            return None

    def _parsed(self, text: str, max_chars: int) -> dict[str, Any] | None:
        try:
            return _json_object(text, max_chars)
        except NotJsonError:
            self.stray = (self.stray + encodable(text[:MAX_STRAY_CHARS]).strip() + "\n")[-MAX_STRAY_CHARS:]
        except (ValueError, RecursionError):
            pass
        self.unreadable += 1
        return None

    def turn(self, source: Literal["system", "user", "agent"], message: str = "", **fields: Any) -> Turn:
        """Begins a step. A step beyond `MAX_STEPS` is counted as unreadable and left out."""
        turn = Turn(source, [message] if message else [], **fields)
        turn.timestamp = timestamp(turn.timestamp)
        if len(self.turns) < MAX_STEPS:
            self.turns.append(turn)
        else:
            self.unreadable += 1
        return turn

    def answer(self, message_id: str, message: str = "", **fields: Any) -> Turn:
        """Returns the step of the answer with this id; its first part begins the step, with these fields."""
        if message_id not in self._answers:
            self._answers[message_id] = self.turn("agent", message, **fields)
        return self._answers[message_id]

    def fail(self, words: str | None, status: int | None = None) -> None:
        """Notes the error that stands now; None: there is none any more, because the agent went on."""
        self.failure, self.status = words, status if words else None

    def call(self, turn: Turn, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        """Adds to a step an action that the agent asks for."""
        turn.calls.append(ToolCall(tool_call_id=call_id, function_name=name, arguments=arguments))
        self._asked[call_id] = turn

    def result(self, call_id: str, content: str, **extra: Any) -> None:
        """Adds the result of an action to the step that asked for it. A result without a call counts as unreadable."""
        if (turn := self._asked.pop(call_id, None)) is None:
            self.unreadable += 1
            return
        turn.results.append(ObservationResult(source_call_id=call_id, content=cut(content), extra=extra or None))

    def finished(self) -> "Reading":
        """Returns the reading with its steps, when all was read."""
        self.steps = tuple(turn.step(number) for number, turn in enumerate(self.turns, start=1))
        self.failure, self.stray = cut(self.failure) if self.failure else None, self.stray.strip()
        self.turns, self._asked, self._answers = [], {}, {}
        return self


def trajectory(readings: Sequence[Reading], agent: Agent, total: FinalMetrics) -> Trajectory:
    """Joins the attempts of one run. Steps are numbered consecutively; if there are several attempts, each step names
    its attempt.

    Args:
        total: What the requests to the LLM came to, as far as it is known.
    """
    steps = [
        step.model_copy(update={"extra": {**(step.extra or {}), "attempt": attempt}} if len(readings) > 1 else {})
        for attempt, reading in enumerate(readings, start=1)
        for step in reading.steps
    ] or [Step(step_id=1, source="system", message="The agent left no transcript that could be read.")]
    unreadable = sum(reading.unreadable for reading in readings)
    models = [reading.model for reading in readings if reading.model]
    return Trajectory(
        session_id=next((reading.session_id for reading in readings if reading.session_id), None),
        agent=agent if agent.model_name or not models else agent.model_copy(update={"model_name": models[0]}),
        steps=tuple(step.model_copy(update={"step_id": number}) for number, step in enumerate(steps, start=1)),
        final_metrics=total.model_copy(update={"total_steps": len(steps)}),
        extra={"attempts": len(readings), "unreadable_lines": unreadable},
    )


class NotJsonError(ValueError):
    """The line is not part of the transcript: something else printed it."""


def _json_object(text: str, max_chars: int) -> dict[str, Any]:
    if len(text) > max_chars or text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
        raise ValueError("too much")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise NotJsonError(str(error)) from error
    if not isinstance(value, dict):
        raise NotJsonError("not an object")
    cleaned: dict[str, Any] = _clean_value(value, MAX_DEPTH)
    return cleaned


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _clean_value(value: Any, depth: int) -> Any:
    if depth < 0:
        raise ValueError("nested too deeply")
    match value:
        case str():
            return encodable(value)
        case dict():
            return {encodable(key): _clean_value(item, depth - 1) for key, item in value.items()}
        case list():
            return [_clean_value(item, depth - 1) for item in value]
        case float() if not math.isfinite(value):
            raise ValueError("a number beyond all bounds")
        case int() if abs(value) > MAX_COUNT:
            raise ValueError("a number too large")
    return value


def parse_arguments(text: str) -> dict[str, Any]:
    """Parses the arguments of a tool call. A text that is not a JSON object becomes the argument `arguments`."""
    try:
        return _json_object(text, MAX_LINE_CHARS)
    except (ValueError, RecursionError):
        return {"arguments": text}


def cut(text: str) -> str:
    """Shortens a text to MAX_TEXT_CHARS."""
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + CUT


def iso_time(seconds: float | None) -> str | None:
    """Returns seconds since 1970 in ISO 8601."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


def timestamp(text: str | None) -> str | None:
    """Returns the time if it is in ISO 8601, as the format requires; otherwise None."""
    try:
        return text if text and datetime.fromisoformat(text) else None
    except ValueError:
        return None
