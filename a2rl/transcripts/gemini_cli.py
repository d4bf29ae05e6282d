"""Gemini CLI: the session file that it writes below `~/.gemini/tmp/<project>/chats`, one file a session.

One JSON object a line (github.com/google-gemini/gemini-cli, packages/core/src/services/chatRecordingService.ts): a
header, messages, and `$set` lines that change the record. A message is written again under its id when its tool calls
have ended; the last version counts. A resumed session goes on in the same file (and leaves another one, without
answers, for the new start). Cached tokens are part of the input, thoughts are not part of the output.

What `--output-format stream-json` prints (geminicli.com/docs/cli/headless) has tokens only in sum, and only if the
session ended by itself; but only there it says which error ended it, and the sum holds requests that no message shows,
such as those of subagents and summaries. It is read after the session files.
"""

import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import BaseModel

from a2rl.transcripts.atif import Count, Metrics
from a2rl.transcripts.reading import Draft, Reading, Turn, added

SOURCES: dict[str, Literal["system", "user", "agent"]] = {"user": "user", "gemini": "agent"}
"""Anything else is a notice of the CLI's own."""


class Header(BaseModel):
    sessionId: str


class FunctionResponse(BaseModel):
    response: dict[str, Any] = {}

    def text(self) -> str:
        """What the LLM was told."""
        for name in ("output", "error"):
            if isinstance(told := self.response.get(name), str):
                return told
        return json.dumps(self.response, ensure_ascii=False)


class Part(BaseModel):
    text: str | None = None
    functionResponse: FunctionResponse | None = None


class Thought(BaseModel):
    subject: str = ""
    description: str = ""


class Tokens(BaseModel):
    input: Count = 0
    output: Count = 0
    cached: Count = 0
    thoughts: Count = 0
    tool: Count = 0

    def metrics(self) -> Metrics:
        return Metrics(
            prompt_tokens=self.input + self.tool,
            completion_tokens=self.output + self.thoughts,
            cached_tokens=self.cached,
        )


class ToolCall(BaseModel):
    id: str
    name: str
    args: dict[str, Any] = {}
    result: list[Part] | None = None
    status: str = ""


class Message(BaseModel):
    id: str
    timestamp: str | None = None
    type: str
    content: str | list[Part] = ""
    thoughts: list[Thought] = []
    tokens: Tokens | None = None
    model: str | None = None
    toolCalls: list[ToolCall] = []

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if part.text)


class Change(BaseModel):
    """A `$set`: at the start, on resuming and after a summary it brings messages."""

    messages: list[Any] = []


class Stats(BaseModel):
    """What a start of the program has used; thoughts are only in `total_tokens`."""

    total_tokens: Count = 0
    input_tokens: Count = 0
    cached: Count = 0

    def metrics(self) -> Metrics:
        return Metrics(
            prompt_tokens=self.input_tokens,
            completion_tokens=max(0, self.total_tokens - self.input_tokens),
            cached_tokens=self.cached,
        )


class Failure(BaseModel):
    message: str = ""


class Printed(BaseModel):
    """A line that Gemini CLI prints: `init`, `message`, `tool_use`, `tool_result`, `error`, `result`."""

    type: str
    session_id: str | None = None
    error: Failure | None = None
    stats: Stats | None = None


class Session:
    """The messages read so far, in the order in which they first appeared."""

    def __init__(self) -> None:
        self.draft = Draft()
        self._messages: dict[str, Message] = {}
        self._used: list[Metrics] = []

    def take(self, line: dict[str, Any]) -> None:
        draft = self.draft
        if "sessionId" in line:
            header = draft.fit(line, Header)
            draft.session_id = header.sessionId if header else draft.session_id
        elif "$set" in line:
            change = draft.fit(line["$set"], Change)
            for each in change.messages if change else []:
                if (message := draft.fit(each, Message)) is not None:
                    self._messages.setdefault(message.id, message)
        elif "id" not in line:
            if (printed := draft.fit(line, Printed)) is not None:
                self._hear(printed)
        elif (message := draft.fit(line, Message)) is not None:
            self._messages[message.id] = message

    def reading(self) -> Reading:
        for message in self._messages.values():
            self._tell(message)
        reading, used = self.draft.reading(), added(self._used)
        whole = (used.prompt_tokens or 0) > (reading.tokens().prompt_tokens or 0)  # not where a start was cut off
        return reading._replace(total=used) if whole else reading

    def _hear(self, printed: Printed) -> None:
        self.draft.session_id = self.draft.session_id or printed.session_id
        if printed.type == "init":
            self.draft.failure = None
        elif printed.type == "result":
            self.draft.failure = printed.error.message if printed.error else None
            self._used += [printed.stats.metrics()] if printed.stats else []

    def _tell(self, message: Message) -> None:
        source = SOURCES.get(message.type, "system")
        text = message.text()
        if source != "agent" and not text:
            return  # results of tools, which stand beside their calls as well
        turn = self.draft.turn(source, text, timestamp=message.timestamp, model=message.model)
        if source == "agent":
            self._tell_work(turn, message)

    def _tell_work(self, turn: Turn, message: Message) -> None:
        self.draft.model = message.model or self.draft.model
        turn.metrics = message.tokens.metrics() if message.tokens else None
        turn.reasoning = [f"{each.subject}\n{each.description}".strip() for each in message.thoughts]
        for call in message.toolCalls:
            self.draft.call(turn, call.id, call.name, call.args)
            if call.result is not None:
                told = [part.functionResponse.text() for part in call.result if part.functionResponse]
                self.draft.result(call.id, "\n".join(told), **({"status": call.status} if call.status else {}))


def read(lines: Iterable[str]) -> Reading:
    """What was said and done, and what it took."""
    session = Session()
    for line in session.draft.objects(lines):
        session.take(line)
    return session.reading()
