"""Claude Code: the output of `claude --print --output-format=stream-json --verbose --include-partial-messages`.

Each line is a JSON object (code.claude.com/docs/en/headless, /en/agent-sdk/streaming-output). An answer of the LLM
consists of one `assistant` line for each of its parts, all with the same message id. Their `usage` contains only what
was known when the answer began, so its tokens are taken from the `message_delta` event. The `result` line contains the
totals, including all side requests (such as those of subagents and summaries). Its costs, at list prices, and its
`modelUsage` include what a resumed session used before; `model_usage_since_last_result` contains only the tokens of
this attempt. The prompt is not printed.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

from a2rl.agent_systems.transcripts.atif import Count, Metrics, Usd
from a2rl.agent_systems.transcripts.reading import Draft, Reading, Turn, add_counts, sum_metrics

Tokens = Annotated[Count, BeforeValidator(lambda value: 0 if value is None else value)]
SYNTHETIC = "<synthetic>"
"""The `model` of messages that Claude Code writes itself, such as API errors."""


class Usage(BaseModel):
    """Token counts as Anthropic reports them: `input_tokens` excludes tokens read from a cache or written to one.

    The totals of a model in a `result` have the same names in camel case.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    input_tokens: Tokens = 0
    cache_creation_input_tokens: Tokens = 0
    cache_read_input_tokens: Tokens = 0
    output_tokens: Tokens = 0

    def metrics(self) -> Metrics:
        """Returns the tokens in the common form."""
        return Metrics(
            prompt_tokens=add_counts(self.input_tokens, self.cache_creation_input_tokens, self.cache_read_input_tokens),
            completion_tokens=self.output_tokens,
            cached_tokens=self.cache_read_input_tokens,
        )


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
    usage: Usage = Usage()

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


class MessageDelta(BaseModel):
    """The event with the final token counts of an answer."""

    usage: Usage


class StreamEvent(BaseModel):
    """A line with an event of the API's stream."""

    api_message_id: str
    event: MessageDelta


class Denial(BaseModel):
    """A tool call that was not permitted."""

    tool_name: str = ""


class Result(BaseModel):
    """The last line of a session, with its totals."""

    subtype: str = ""
    is_error: bool = False
    result: str | None = None
    errors: list[str] = []
    terminal_reason: str | None = None
    api_error_status: int | None = None
    permission_denials: list[Denial] = []
    total_cost_usd: Usd | None = None
    model_usage_since_last_result: dict[str, Usage] | None = None

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

    def tokens(self) -> Metrics | None:
        """Returns the tokens since the previous result; None if it does not say."""
        if self.model_usage_since_last_result is None:
            return None
        return sum_metrics(
            [Usage().metrics(), *(each.metrics() for each in self.model_usage_since_last_result.values())]
        )


class Session:
    """The log read so far. If a session was resumed, the log contains its attempts one after another."""

    def __init__(self) -> None:
        self.draft = Draft()
        self._answers: dict[str, Turn] = {}
        self._unsettled: dict[str, Metrics] = {}
        """Tokens by message, since the last `result`."""
        self._calls = self._counted = 0
        """The calls of tools up to the last `result`, and the number of turns in which they are."""

    def take(self, line: dict[str, Any]) -> None:
        """Reads the next line."""
        draft = self.draft
        match line.get("type"), line.get("subtype"):
            case "assistant" | "user", _ if said := draft.fit(line, Said):
                self._hear(said)
            case "stream_event", _:
                self._count(line)
            case "system", "init" if init := draft.fit(line, Init):
                self.settle(None)
                draft.session_id, draft.model = init.session_id, init.model
                draft.agent_version = init.claude_code_version
            case "system", "api_retry" if retry := draft.fit(line, ApiRetry):
                draft.fail(f"API Error: {retry.error_status or ''} {retry.error}".strip(), retry.error_status)
            case "result", _ if result := draft.fit(line, Result):
                self.settle(result.tokens())
                draft.cost_usd = result.total_cost_usd
                self._calls += sum(len(turn.calls) for turn in draft.turns[self._counted :])
                self._counted = len(draft.turns)  # not all again: there may be a result after each turn
                draft.fail(result.failure(self._calls), result.api_error_status)
                draft.is_done = result.subtype == "success" and draft.failure is None

    def settle(self, tokens: Metrics | None) -> None:
        """Adds the tokens used up to a `result`.

        Args:
            tokens: The totals of the `result`. None: the output ended before a `result`; the tokens of the answers
                are added instead.
        """
        used = [tokens] if tokens else list(self._unsettled.values())
        self.draft.total = sum_metrics([*([self.draft.total] if self.draft.total else []), *used])
        if not tokens and used:
            self.draft.cost_usd = None
        self._unsettled = {}

    def _hear(self, said: Said) -> None:
        blocks = said.message.blocks()
        if said.type == "user":
            for block in blocks:
                self._told(said, block)
        elif said.message.model == SYNTHETIC:
            for block in blocks:
                self.draft.turn("system", block.text, timestamp=said.timestamp)
        else:
            turn = self._answer(said)
            for block in blocks:
                self._part(turn, block)

    def _told(self, said: Said, block: Block) -> None:
        if block.type == "tool_result":
            extra = {"is_error": True} if block.is_error else {}
            self.draft.result(block.tool_use_id, block.content_text(), **extra)
        elif block.type == "text":
            self.draft.turn("user", block.text, timestamp=said.timestamp, extra=said.extra())

    def _answer(self, said: Said) -> Turn:
        self.draft.fail(None)  # the retry has succeeded
        self.draft.is_done = False
        message = said.message
        if message.id not in self._answers:
            self._unsettled[message.id] = message.usage.metrics()
            self._answers[message.id] = self.draft.turn(
                "agent",
                timestamp=said.timestamp,
                model=message.model,
                metrics=self._unsettled[message.id],
                extra=said.extra(),
            )
        return self._answers[message.id]

    def _part(self, turn: Turn, block: Block) -> None:
        match block.type:
            case "text":
                turn.message.append(block.text)
            case "thinking":
                turn.reasoning.append(block.thinking)
            case "tool_use":
                self.draft.call(turn, block.id, block.name, block.input)

    def _count(self, line: dict[str, Any]) -> None:
        event = line.get("event")
        if not isinstance(event, dict) or event.get("type") != "message_delta":
            return
        if delta := self.draft.fit(line, StreamEvent):
            metrics = delta.event.usage.metrics()
            self._unsettled[delta.api_message_id] = metrics
            if turn := self._answers.get(delta.api_message_id):
                turn.metrics = metrics


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    session = Session()
    for line in session.draft.objects(lines):
        session.take(line)
    session.settle(None)
    return session.draft.reading()
