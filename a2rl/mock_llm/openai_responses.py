"""OpenAI's Responses API, as far as agents use it (platform.openai.com/docs/api-reference/responses)."""

import time
from collections.abc import Iterator

from a2rl.mock_llm import openai_chat
from a2rl.mock_llm.dialogue import Json, LlmRequest, Message, Reply, Tool, compact, event, pieces, text_of
from a2rl.mock_llm.scenario import Usage

PROTOCOL = "openai-responses"
LOCAL_SHELL = {"properties": {"command": {"type": "array"}, "timeout_ms": {"type": "integer"}}}
"""Codex's built-in `local_shell` has no schema in the request; this is the schema of its `exec` action."""
error = openai_chat.error


def read(body: Json) -> LlmRequest:
    """Reads a request; see `Dialect.read`."""
    given = body["input"]
    items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    said = [each for each in items if each.get("role") not in {"system", "developer"}]
    told = [text_of(each.get("content")) for each in items if each.get("role") in {"system", "developer"}]
    return LlmRequest(
        model=body["model"],
        stream=bool(body.get("stream")),
        messages=tuple(_message(each) for each in said),
        tools=tuple(_tools(body.get("tools") or [])),
        preamble=text_of(body.get("instructions")) + "".join(told) + text_of(body.get("tools")),
        json_schema=((body.get("text") or {}).get("format") or {}).get("schema"),
    )


def _tools(offered: list[Json]) -> Iterator[Tool]:
    for each in offered:
        if each["type"] == "function":
            yield Tool(each["name"], each.get("parameters") or {})
        elif each["type"] == "local_shell":
            yield Tool("local_shell", LOCAL_SHELL)


def _message(item: Json) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        return Message("assistant", item["arguments"], (item["name"],))
    if kind == "local_shell_call":
        return Message("assistant", compact(item["action"]), ("local_shell",))
    if kind.endswith("_output"):
        return Message("user", text_of(item["output"]))
    return Message("assistant" if item.get("role") == "assistant" else "user", text_of(item.get("content")))


def whole(asked: LlmRequest, reply: Reply) -> Json:
    """Returns the complete answer; see `Dialect.whole`."""
    return {**_envelope(asked, reply), "status": "completed", "output": _items(reply), "usage": _usage(reply.usage)}


def events(asked: LlmRequest, reply: Reply) -> Iterator[str]:
    """Yields the answer as server-sent events; see `Dialect.events`."""
    begun = {**_envelope(asked, reply), "status": "in_progress", "output": [], "usage": None}
    steps: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(_items(reply)):
        steps += ({**step, "output_index": index} for step in _steps(item))
    steps.append({"type": "response.completed", "response": whole(asked, reply)})
    for number, step in enumerate(steps):
        yield event({**step, "sequence_number": number}, step["type"])


def _steps(item: Json) -> Iterator[Json]:
    """Yields the events of one item of the output."""
    if item["type"] == "message":
        [part] = item["content"]
        begun = {**item, "status": "in_progress", "content": []}
        inner = _text_steps(item["id"], part)
    elif item["type"] == "function_call":
        begun = {**item, "status": "in_progress", "arguments": ""}
        inner = _argument_steps(item)
    else:
        begun, inner = {**item, "status": "in_progress"}, iter(())
    yield {"type": "response.output_item.added", "item": begun}
    yield from inner
    yield {"type": "response.output_item.done", "item": item}


def _text_steps(item_id: str, part: Json) -> Iterator[Json]:
    where: Json = {"item_id": item_id, "content_index": 0}
    yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **where, "part": part}


def _argument_steps(item: Json) -> Iterator[Json]:
    for piece in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", "item_id": item["id"], "delta": piece}
    yield {
        "type": "response.function_call_arguments.done",
        "item_id": item["id"],
        "name": item["name"],
        "arguments": item["arguments"],
    }


def _envelope(asked: LlmRequest, reply: Reply) -> Json:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(time.time()),
        "model": asked.model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def _items(reply: Reply) -> list[Json]:
    items: list[Json] = []
    if reply.say:
        part = {"type": "output_text", "text": reply.say, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{reply.id}", "status": "completed", "role": "assistant"}
        items.append({**message, "content": [part]})
    if reply.call:
        items.append(_call(reply.id, reply.call.name, reply.call.arguments))
    return items


def _call(reply_id: str, name: str, arguments: Json) -> Json:
    common = {"call_id": f"call_{reply_id}", "status": "completed"}
    if name == "local_shell":
        action = {"type": "exec", "env": {}, **arguments}
        return {"type": "local_shell_call", "id": f"lsh_{reply_id}", **common, "action": action}
    return {"type": "function_call", "id": f"fc_{reply_id}", **common, "name": name, "arguments": compact(arguments)}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
