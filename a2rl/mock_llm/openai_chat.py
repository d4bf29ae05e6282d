"""OpenAI's Chat Completions API, as far as agents use it (platform.openai.com/docs/api-reference/chat)."""

import time
from collections.abc import Iterator

from a2rl.mock_llm.dialogue import Json, LlmRequest, Message, Reply, Tool, compact, event, pieces, text_of
from a2rl.mock_llm.scenario import Usage

PROTOCOL = "openai-chat"
ERRORS = {400: "invalid_request_error", 401: "invalid_api_key", 429: "rate_limit_exceeded"}


def read(body: Json) -> LlmRequest:
    """Reads a request; see `Dialect.read`."""
    functions = [each["function"] for each in body.get("tools") or () if each.get("type") == "function"]
    said = [each for each in body["messages"] if each["role"] not in {"system", "developer"}]
    told = [text_of(each.get("content")) for each in body["messages"] if each["role"] in {"system", "developer"}]
    return LlmRequest(
        model=body["model"],
        stream=bool(body.get("stream")),
        messages=tuple(_message(each) for each in said),
        tools=tuple(Tool(each["name"], each.get("parameters") or {}) for each in functions),
        preamble="".join(told) + text_of(body.get("tools")),
        json_schema=_schema(body),
        options={"include_usage": bool((body.get("stream_options") or {}).get("include_usage"))},
    )


def _message(message: Json) -> Message:
    called = message.get("tool_calls") or []
    text = text_of(message.get("content")) + "".join(each["function"]["arguments"] for each in called)
    names = tuple(each["function"]["name"] for each in called)
    return Message("assistant" if message["role"] == "assistant" else "user", text, names)


def _schema(body: Json) -> Json | None:
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_object":
        return {"type": "object"}
    schema: Json | None = (wanted.get("json_schema") or {}).get("schema")
    return schema


def whole(asked: LlmRequest, reply: Reply) -> Json:
    """Returns the complete answer; see `Dialect.whole`."""
    message: Json = {"role": "assistant", "content": reply.say or None}
    if reply.call:
        message["tool_calls"] = [_call(reply, compact(reply.call.arguments))]
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply), "logprobs": None}
    return {**_envelope(asked, reply), "object": "chat.completion", "choices": [choice], "usage": _usage(reply.usage)}


def events(asked: LlmRequest, reply: Reply) -> Iterator[str]:
    """Yields the answer as server-sent events; see `Dialect.events`."""
    envelope = {**_envelope(asked, reply), "object": "chat.completion.chunk"}

    def chunk(delta: Json, finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return event({**envelope, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(reply.say):
        yield chunk({"content": piece})
    if reply.call:
        yield chunk({"tool_calls": [{"index": 0, **_call(reply, "")}]})
        for piece in pieces(compact(reply.call.arguments)):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    yield chunk({}, _finish_reason(reply))
    if asked.options.get("include_usage"):
        yield event({**envelope, "choices": [], "usage": _usage(reply.usage)})
    yield event("[DONE]")


def error(status: int, message: str) -> Json:
    """Returns the body of an error answer."""
    code = ERRORS.get(status)
    return {"error": {"message": message, "type": code or "server_error", "param": None, "code": code}}


def _envelope(asked: LlmRequest, reply: Reply) -> Json:
    return {"id": f"chatcmpl-{reply.id}", "created": int(time.time()), "model": asked.model}


def _call(reply: Reply, arguments: str) -> Json:
    name = reply.call.name if reply.call else ""
    return {"id": f"call_{reply.id}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.call else "stop"


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
