"""Anthropic's Messages API, as far as agents use it (docs.claude.com/en/api/messages and /messages-streaming)."""

from collections.abc import Iterator

from a2rl.mock_llm.dialogue import Json, LlmRequest, Message, Reply, Tool, compact, event, pieces, text_of
from a2rl.mock_llm.scenario import Usage

PROTOCOL = "anthropic"
ERRORS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}


def read(body: Json) -> LlmRequest:
    """Reads a request; see `Dialect.read`."""
    return LlmRequest(
        model=body["model"],
        stream=bool(body.get("stream")),
        messages=tuple(_message(each) for each in body["messages"]),
        tools=tuple(
            Tool(each["name"], each["input_schema"]) for each in body.get("tools") or () if "input_schema" in each
        ),
        preamble=text_of(body.get("system")) + text_of(body.get("tools")),
        json_schema=_schema(body),
    )


def _message(message: Json) -> Message:
    content = message["content"]
    parts = content if isinstance(content, list) else []
    calls = tuple(part["name"] for part in parts if part["type"] == "tool_use")
    return Message("assistant" if message["role"] == "assistant" else "user", text_of(content), calls)


def _schema(body: Json) -> Json | None:
    wanted = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    schema: Json | None = wanted.get("schema")
    return schema


def whole(asked: LlmRequest, reply: Reply) -> Json:
    """Returns the complete answer; see `Dialect.whole`."""
    return {
        **_envelope(asked, reply),
        "content": _blocks(reply),
        "stop_reason": _stop_reason(reply),
        "usage": _usage(reply.usage),
    }


def events(asked: LlmRequest, reply: Reply) -> Iterator[str]:
    """Yields the answer as server-sent events; see `Dialect.events`."""

    def named(kind: str, **fields: object) -> str:
        return event({"type": kind, **fields}, kind)

    usage = {**_usage(reply.usage), "output_tokens": min(1, reply.usage.output_tokens)}
    yield named(
        "message_start", message={**_envelope(asked, reply), "content": [], "stop_reason": None, "usage": usage}
    )
    yield named("ping")
    for index, block in enumerate(_blocks(reply)):
        start = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield named("content_block_start", index=index, content_block=start)
        for delta in _deltas(block):
            yield named("content_block_delta", index=index, delta=delta)
        yield named("content_block_stop", index=index)
    ending = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield named("message_delta", delta=ending, usage=_usage(reply.usage))
    yield named("message_stop")


def error(status: int, message: str) -> Json:
    """Returns the body of an error answer."""
    return {"type": "error", "error": {"type": ERRORS.get(status, "api_error"), "message": message}}


def _envelope(asked: LlmRequest, reply: Reply) -> Json:
    message = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant"}
    return {**message, "model": asked.model, "stop_sequence": None}


def _blocks(reply: Reply) -> list[Json]:
    blocks: list[Json] = [{"type": "text", "text": reply.say}] if reply.say else []
    if reply.call:
        name, arguments = reply.call
        blocks.append({"type": "tool_use", "id": f"toolu_{reply.id}", "name": name, "input": arguments})
    return blocks


def _deltas(block: Json) -> Iterator[Json]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
    else:
        written = compact(block["input"])
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(written))


def _stop_reason(reply: Reply) -> str:
    return "tool_use" if reply.call else "end_turn"


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
