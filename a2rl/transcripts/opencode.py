"""OpenCode: what `opencode run --format json` prints.

One JSON object a line (opencode.ai/docs/cli, github.com/sst/opencode, packages/opencode/src/cli/cmd/run.ts): the parts
of the session's messages as they are completed, and errors. The parts of an answer share a message id; `step_finish`
has its tokens, in which cached input is not part of the input and reasoning not part of the output. The prompt and the
model are not printed, nor are the sessions of subagents or what the LLM was asked for a title; of an answer that is cut
off in a tool call, neither the call nor the tokens.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from a2rl.transcripts.atif import Count, Metrics, Usd
from a2rl.transcripts.reading import Draft, Reading, Turn

END_OF_CALENDAR_MS = 253_402_300_799_000


class Cache(BaseModel):
    read: Count = 0
    write: Count = 0


class Tokens(BaseModel):
    input: Count = 0
    output: Count = 0
    reasoning: Count = 0
    cache: Cache = Cache()


class State(BaseModel):
    """How a tool call ended."""

    status: str = ""
    input: dict[str, Any] = {}
    output: str | None = None
    error: str | None = None


class Part(BaseModel):
    """A part of a message, of any type."""

    messageID: str
    text: str = ""
    callID: str = ""
    tool: str = ""
    state: State = State()
    tokens: Tokens = Tokens()
    cost: Usd = 0.0

    def metrics(self) -> Metrics:
        tokens, cache = self.tokens, self.tokens.cache
        return Metrics(
            prompt_tokens=tokens.input + cache.read + cache.write,
            completion_tokens=tokens.output + tokens.reasoning,
            cached_tokens=cache.read,
            cost_usd=self.cost or None,  # 0 where it does not know the prices
        )


class ErrorData(BaseModel):
    message: str = ""
    statusCode: int | None = None


class Failure(BaseModel):
    name: str = "error"
    data: ErrorData = ErrorData()

    def words(self) -> str:
        status = f" {self.data.statusCode}" if self.data.statusCode else ""
        return f"{self.name}{status}: {self.data.message}"


class Event(BaseModel):
    type: str
    timestamp: Annotated[int, Field(ge=0, le=END_OF_CALENDAR_MS)] | None = None
    sessionID: str | None = None
    part: Part | None = None
    error: Failure | None = None

    def time(self) -> str | None:
        return None if self.timestamp is None else datetime.fromtimestamp(self.timestamp / 1000, UTC).isoformat()


class Session:
    """The events read so far."""

    def __init__(self) -> None:
        self.draft = Draft()
        self._answers: dict[str, Turn] = {}

    def take(self, event: Event) -> None:
        draft, part = self.draft, event.part
        draft.session_id = event.sessionID or draft.session_id
        if event.error:
            draft.failure = event.error.words()
        if part is None:
            return
        turn = self._answer(event, part)
        match event.type:
            case "step_start":
                draft.failure = None  # it went on
            case "text":
                turn.message.append(part.text)
            case "reasoning":
                turn.reasoning.append(part.text)
            case "tool_use":
                draft.call(turn, part.callID, part.tool, part.state.input)
                draft.result(part.callID, part.state.output or part.state.error or "", status=part.state.status)
            case "step_finish":
                turn.metrics = part.metrics()

    def _answer(self, event: Event, part: Part) -> Turn:
        """The step that the parts of a message make."""
        if part.messageID not in self._answers:
            self._answers[part.messageID] = self.draft.turn("agent", timestamp=event.time())
        return self._answers[part.messageID]


def read(lines: Iterable[str]) -> Reading:
    """What was said and done, and what it took."""
    session = Session()
    for value in session.draft.objects(lines):
        if (event := session.draft.fit(value, Event)) is not None:
            session.take(event)
    return session.draft.reading()
