"""Claude Code: what `claude --print --output-format=stream-json --verbose --include-partial-messages` prints.

One JSON object a line (code.claude.com/docs/en/headless, /en/agent-sdk/streaming-output). An answer of the LLM comes as
one `assistant` line for each of its parts, all with the same message id; their `usage` is what was known when it began,
so that its tokens are taken from its `message_delta` event. The `result` line has the sums with all side requests (such
as those of subagents and summaries). Its costs, at list prices, and its `modelUsage` go on where a resumed session was;
tokens of this attempt alone are in `model_usage_since_last_result`. The prompt is not printed.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator

from a2rl.transcripts.atif import Count, Metrics, Usd
from a2rl.transcripts.reading import Draft, Reading, Turn, added

Tokens = Annotated[Count, BeforeValidator(lambda value: 0 if value is None else value)]
SYNTHETIC = "<synthetic>"
"""The `model` of messages that Claude Code writes itself, such as API errors."""


class Usage(BaseModel):
    """Anthropic's: what came from a cache, or went into one, is not part of `input_tokens`."""

    input_tokens: Tokens = 0
    cache_creation_input_tokens: Tokens = 0
    cache_read_input_tokens: Tokens = 0
    output_tokens: Tokens = 0

    def metrics(self) -> Metrics:
        return Metrics(
            prompt_tokens=self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens,
            completion_tokens=self.output_tokens,
            cached_tokens=self.cache_read_input_tokens,
        )


class ModelUsage(BaseModel):
    """The sums of one model in a `result`."""

    inputTokens: Count = 0
    cacheCreationInputTokens: Count = 0
    cacheReadInputTokens: Count = 0
    outputTokens: Count = 0

    def prompt_tokens(self) -> int:
        return self.inputTokens + self.cacheCreationInputTokens + self.cacheReadInputTokens


class Init(BaseModel):
    session_id: str
    model: str | None = None
    claude_code_version: str | None = None


class ApiRetry(BaseModel):
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


class Message(BaseModel):
    id: str = ""
    model: str | None = None
    content: str | list[Block] = ""
    usage: Usage = Usage()

    def blocks(self) -> list[Block]:
        return [Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class Said(BaseModel):
    """A line of type `assistant` or `user`."""

    type: Literal["assistant", "user"]
    message: Message
    parent_tool_use_id: str | None = None
    timestamp: str | None = None


class MessageDelta(BaseModel):
    usage: Usage


class StreamEvent(BaseModel):
    api_message_id: str
    event: MessageDelta


class Result(BaseModel):
    subtype: str = ""
    is_error: bool = False
    result: str | None = None
    errors: list[str] = []
    total_cost_usd: Usd | None = None
    model_usage_since_last_result: dict[str, ModelUsage] = {}

    def tokens(self) -> Metrics:
        models = self.model_usage_since_last_result.values()
        return Metrics(
            prompt_tokens=sum(each.prompt_tokens() for each in models),
            completion_tokens=sum(each.outputTokens for each in models),
            cached_tokens=sum(each.cacheReadInputTokens for each in models),
        )


def read(lines: Iterable[str]) -> Reading:
    """What was said and done, and what it took."""
    draft = Draft()
    answers: dict[str, Turn] = {}
    usages: dict[str, Usage] = {}
    for line in draft.objects(lines):
        match line.get("type"):
            case "assistant" | "user":
                if (said := draft.fit(line, Said)) is not None:
                    _message(draft, answers, said)
            case "stream_event":
                _tokens(draft, usages, line)
            case "system":
                _system(draft, line)
            case "result":
                if (result := draft.fit(line, Result)) is not None:
                    _result(draft, result)
    for message_id, turn in answers.items():
        if message_id in usages:
            turn.metrics = usages[message_id].metrics()
    return draft.reading()


def _message(draft: Draft, answers: dict[str, Turn], said: Said) -> None:
    if said.type == "user":
        _user(draft, said)
    elif said.message.model == SYNTHETIC:
        for block in said.message.blocks():
            draft.turn("system", block.text, timestamp=said.timestamp)
    else:
        draft.failure = None
        if said.message.id not in answers:
            answers[said.message.id] = draft.turn(
                "agent",
                timestamp=said.timestamp,
                model=said.message.model,
                metrics=said.message.usage.metrics(),
                extra=_extra(said),
            )
        for block in said.message.blocks():
            _answer(draft, answers[said.message.id], block)


def _answer(draft: Draft, turn: Turn, block: Block) -> None:
    match block.type:
        case "text":
            turn.message.append(block.text)
        case "thinking":
            turn.reasoning.append(block.thinking)
        case "tool_use":
            draft.call(turn, block.id, block.name, block.input)


def _user(draft: Draft, said: Said) -> None:
    for block in said.message.blocks():
        if block.type == "tool_result":
            draft.result(block.tool_use_id, _text(block.content), **({"is_error": True} if block.is_error else {}))
        elif block.type == "text":
            draft.turn("user", block.text, timestamp=said.timestamp, extra=_extra(said))


def _text(content: str | list[Block] | None) -> str:
    if isinstance(content, list):
        return "\n".join(block.text or f"[{block.type}]" for block in content)
    return content or ""


def _extra(said: Said) -> dict[str, Any] | None:
    return {"parent_tool_use_id": said.parent_tool_use_id} if said.parent_tool_use_id else None


def _tokens(draft: Draft, usages: dict[str, Usage], line: dict[str, Any]) -> None:
    event = line.get("event")
    if isinstance(event, dict) and event.get("type") == "message_delta" and (delta := draft.fit(line, StreamEvent)):
        usages[delta.api_message_id] = delta.event.usage


def _system(draft: Draft, line: dict[str, Any]) -> None:
    match line.get("subtype"):
        case "init" if init := draft.fit(line, Init):
            draft.session_id, draft.model, draft.agent_version = init.session_id, init.model, init.claude_code_version
        case "api_retry" if retry := draft.fit(line, ApiRetry):
            draft.failure = f"API Error: {retry.error_status or ''} {retry.error}".strip()


def _result(draft: Draft, result: Result) -> None:
    draft.total = added([*([draft.total] if draft.total else []), result.tokens()])
    draft.cost_usd = result.total_cost_usd
    words = [*result.errors, result.result or ""] if result.is_error else []
    draft.failure = "\n".join(filter(None, words)) or (result.subtype if result.is_error else None)
