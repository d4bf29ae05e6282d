"""Google's Gemini API, as far as agents use it (ai.google.dev/api/generate-content).

The model and the choice to stream are in the URL, not in the body; `app` adds them to the body as `model` and `stream`.
"""

from collections.abc import Iterator

from a2rl.mock_llm.dialogue import Json, LlmRequest, Message, Reply, Tool, event, pieces, text_of
from a2rl.mock_llm.scenario import Usage

PROTOCOL = "gemini"
ERRORS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}


def read(body: Json) -> LlmRequest:
    """Reads a request; see `Dialect.read`."""
    given = body["contents"]
    config = body.get("generationConfig") or {}
    declared = [each for tool in body.get("tools") or () for each in tool.get("functionDeclarations") or ()]
    return LlmRequest(
        model=body["model"],
        stream=bool(body.get("stream")),
        messages=tuple(_message(each) for each in given),
        tools=tuple(Tool(each["name"], _parameters(each)) for each in declared),
        preamble=text_of(body.get("systemInstruction")) + text_of(body.get("tools")),
        json_schema=config.get("responseJsonSchema") or config.get("responseSchema"),
    )


def _message(content: Json) -> Message:
    parts = content.get("parts") or []
    calls = tuple(part["functionCall"]["name"] for part in parts if "functionCall" in part)
    return Message("assistant" if content.get("role") == "model" else "user", text_of(parts), calls)


def _parameters(declaration: Json) -> Json:
    schema: Json = declaration.get("parametersJsonSchema") or declaration.get("parameters") or {}
    return schema


def whole(asked: LlmRequest, reply: Reply) -> Json:
    """Returns the complete answer; see `Dialect.whole`."""
    return _chunk(asked, reply, _parts(reply), last=True)


def events(asked: LlmRequest, reply: Reply) -> Iterator[str]:
    """Yields the answer as server-sent events; see `Dialect.events`."""
    for piece in pieces(reply.say):
        yield event(_chunk(asked, reply, [{"text": piece}], last=False))
    yield event(_chunk(asked, reply, _call(reply), last=True))


def error(status: int, message: str) -> Json:
    """Returns the body of an error answer."""
    return {"error": {"code": status, "message": message, "status": ERRORS.get(status, "UNAVAILABLE")}}


def _chunk(asked: LlmRequest, reply: Reply, parts: list[Json], last: bool) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts or [{"text": ""}]}, "index": 0}
    if last:
        candidate["finishReason"] = "STOP"
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(reply.usage if last else reply.usage.model_copy(update={"output_tokens": 0})),
        "modelVersion": asked.model,
        "responseId": reply.id,
    }


def _parts(reply: Reply) -> list[Json]:
    return ([{"text": reply.say}] if reply.say else []) + _call(reply)


def _call(reply: Reply) -> list[Json]:
    return [{"functionCall": {"name": reply.call.name, "args": reply.call.arguments}}] if reply.call else []


def _usage(usage: Usage) -> Json:
    return {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
    }
