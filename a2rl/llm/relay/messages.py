"""Reads requests to an LLM and the token counts of its answers, whole or streamed, in the dialects of Anthropic, OpenAI
(chat and responses) and Google.

`beyond_text` says what a request may ask of the provider: text, from what is in the request itself. Most other things
would reach the network, files or programs from the provider's servers, around the sandbox: its search and its browser,
code in its containers, tools of other servers, URLs and stored files that it fetches, and contents that are stored
there, which no record of ours has. The tokens of sounds, films and drawn pictures cost more than we count for them. So
what is allowed is listed, dialect by dialect. What is not listed is refused, new features too, unless
`provider.allowed` of rules.yaml names it.

    beyond_text("/v1/messages", {"model": "m", "messages": [], "mcp_servers": [{}]})      # {"mcp_servers"}

All input is untrusted: no function here raises an exception for any input, and the memory used is limited.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from a2rl.core.model_text import encodable
from a2rl.core.token_use import TokenUse, tokens_beside, tokens_of

CLIENT_TOOLS = re.compile(
    r"function|custom|local_shell|apply_patch|tool_search|tool_search_tool_\w+|(?:bash|text_editor|memory)_\d{8}"
)
"""Tools that the agent runs itself, and the search among their definitions."""
SOURCES = ("url", "file_id", "file_url", "file_uri", "image_url", "video_url")
INLINE = ("base64", "text", "content")
ROOTS = ("messages", "system", "input", "contents", "systemInstruction", "system_instruction")
MODEL = re.compile(r"[!-~]{0,200}")
"""What names of models look like."""
ONLINE = re.compile(r".*:online|(?:.*/)?sonar.*|.*search-(?:preview|api).*|.*deep-research.*|(?:.*/)?compound.*", re.I)
"""Models that search the web by themselves."""
MAX_DEPTH = 8
TOO_DEEP = "content that is nested too deeply"
MAX_NAME = 100
MAX_SCHEME = 40
"""Characters at whose beginning a URL says what it is."""
READ = re.compile(r"(?:image/|text/|application/(?:pdf|json)\b)")
"""The kinds of files whose tokens cost what those of text cost; those of sounds and films cost more."""
DATA = re.compile(f"data:{READ.pattern}")
KINDS = ("mimeType", "mime_type", "media_type", "format")
MAX_TOOLS = 20
MAX_KEPT = 16 << 20
"""The number of bytes that are buffered of an answer, or of one event in it."""
LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed")
TIERS = {"service_tier": "service_tier", "serviceTier": "service_tier", "speed": "speed"}
"""Where dialects say at which tier of the service they answer, and the name of that in the table of prices."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DIALECTS = {
    "/messages": _words(
        """model messages system tools tool_choice max_tokens stop_sequences stream temperature top_p top_k thinking
        metadata service_tier speed output_config output_format context_management cache_control inference_geo betas
        diagnostics"""
    ),
    "/responses": _words(
        """model input instructions tools tool_choice parallel_tool_calls max_tool_calls stream stream_options
        temperature top_p top_logprobs max_output_tokens reasoning text truncation include metadata client_metadata user
        safety_identifier store service_tier prompt_cache_key prompt_cache_retention context_management background"""
    ),
    "/chat/completions": _words(
        """model messages tools tool_choice functions function_call parallel_tool_calls stream stream_options
        temperature top_p top_k min_p n stop seed max_tokens max_completion_tokens presence_penalty frequency_penalty
        repetition_penalty logit_bias logprobs top_logprobs response_format reasoning_effort reasoning include_reasoning
        verbosity thinking enable_thinking chat_template_kwargs prediction modalities metadata user safety_identifier
        store service_tier usage prompt_cache_key prompt_cache_retention"""
    ),
}
"""The settings of a request, by the end of its path. Google's have another form of path."""
GOOGLE = _words(
    """model contents systemInstruction system_instruction tools toolConfig tool_config safetySettings safety_settings
    generationConfig generation_config labels generateContentRequest generate_content_request"""
)
GENERATION = _words(
    """candidatecount stopsequences maxoutputtokens temperature topp topk seed presencepenalty frequencypenalty logprobs
    responselogprobs responsemimetype responseschema responsejsonschema enableenhancedcivicanswers thinkingconfig
    mediaresolution"""
)
"""Google's settings of an answer of text, which have two spellings, such as `topP` and `top_p`."""
PARTS = _words(
    """message text image document search_result tool_use tool_result tool_reference thinking redacted_thinking
    compaction image_url file refusal input_text output_text input_image input_file summary_text
    reasoning_text reasoning function_call function_call_output custom_tool_call custom_tool_call_output
    local_shell_call local_shell_call_output shell_call shell_call_output apply_patch_call apply_patch_call_output
    tool_search_call tool_search_output compaction_summary"""
)
MESSAGE = _words(
    """role content parts name id status phase tool_calls tool_call_id function_call refusal reasoning reasoning_content
    reasoning_details annotations cache_control prefix text thought thoughtSignature thought_signature inlineData
    inline_data functionCall functionResponse function_response videoMetadata video_metadata mediaResolution
    media_resolution provider_specific_fields thinking_blocks reasoning_items extra_content"""
)
"""The keys of a message, those of LiteLLM included, and of Google's parts, which have no type."""


def beyond_text(path: str, body: dict[str, Any]) -> set[str]:
    """Returns what a request asks of the provider's servers besides text, by the names in the request."""
    try:
        return set(_beyond(path, body))
    except RecursionError:
        return {TOO_DEEP}


def _beyond(path: str, body: dict[str, Any], is_inner: bool = False) -> Iterator[str]:
    is_google = ":" in path.rsplit("/", 1)[-1]
    known = GOOGLE if is_google else next((keys for end, keys in DIALECTS.items() if end in path), frozenset())
    yield from (name for name, value in body.items() if name not in known and value is not None)
    if isinstance(model := body.get("model"), str) and not MODEL.fullmatch(model):
        yield "a model with a strange name"
    elif isinstance(model, str) and ONLINE.fullmatch(model):
        yield model
    yield from _tools(body.get("tools"), is_google)
    yield from _modalities(body.get("modalities"))
    for name in ("generationConfig", "generation_config"):
        yield from _generation(body.get(name))
    for name in ROOTS:
        yield from _parts(body.get(name), is_google)
    for name in ("generateContentRequest", "generate_content_request"):
        if isinstance(inner := body.get(name), dict):
            yield from [TOO_DEEP] if is_inner else _beyond(path, inner, is_inner=True)


def _tools(tools: object, is_google: bool) -> Iterator[str]:
    for tool in tools if isinstance(tools, list) else [tools]:
        if tool is None:
            continue
        if not isinstance(tool, dict):
            yield "tools"
        elif is_google:
            yield from (name for name in tool if name not in ("functionDeclarations", "function_declarations"))
        elif tool.get("type") == "namespace":
            yield from _tools(tool.get("tools"), is_google)
        elif "type" in tool or "input_schema" not in tool:
            kind = str(tool.get("type"))
            is_local = kind == "shell" and (tool.get("environment") or {"type": "local"}) == {"type": "local"}
            if not is_local and not CLIENT_TOOLS.fullmatch(kind):
                yield kind


def _modalities(value: object) -> Iterator[str]:
    for each in value if isinstance(value, list) else [value]:
        if each is not None and str(each).lower() != "text":
            yield str(each)


def _generation(config: object) -> Iterator[str]:
    for name, value in config.items() if isinstance(config, dict) else ():
        plain = name.replace("_", "").lower()
        if plain == "responsemodalities":
            yield from _modalities(value)
        elif plain not in GENERATION and value is not None:
            yield name


def _parts(value: object, is_google: bool, depth: int = 0) -> Iterator[str]:
    """Yields what is not allowed in messages and in their parts. Calls of tools and their schemas are free texts."""
    if depth > MAX_DEPTH:
        yield TOO_DEEP
    elif isinstance(value, list):
        for each in value:
            yield from _parts(each, is_google, depth + 1)
    elif isinstance(value, dict):
        yield from _part(value, is_google)
        yield from _tools(value.get("tools"), is_google)
        is_shell = value.get("type") == "shell_call_output"  # what a program has printed, and how it ended
        for name in ("content", "parts", *(() if is_shell else ("output",))):
            if isinstance(inner := value.get(name), list | dict):
                yield from _parts(inner, is_google, depth + 1)
        for name in ("source", "functionResponse", "function_response"):
            if isinstance(inner := value.get(name), dict):
                yield from _parts([inner.get("content"), inner.get("parts")], is_google, depth + 1)


def _part(part: dict[str, Any], is_google: bool) -> Iterator[str]:
    kind, source = None if is_google else part.get("type"), part.get("source")
    inner = part.get(kind) if isinstance(kind, str) else None
    for each in (inner, source, part.get("inlineData"), part.get("inline_data")):
        yield from _other_kinds(each)
    if kind is None:
        yield from (name for name, value in part.items() if name not in MESSAGE and value is not None)
        is_message = part.get("role") and (part.get("content") is not None or part.get("tool_calls"))
        if part.get("id") is not None and not is_message:  # so the provider looks up what has this id
            yield "a message by id"
    elif not isinstance(kind, str) or kind not in PARTS:
        yield str(kind)
    else:
        yield from (f"{kind} by {name}" for each in (part, inner, source) for name in _sources(each))
        inline = inner if isinstance(inner, dict) else part
        yield from (f"{kind} by {name}" for name in ("file_data", "data") if _is_url(inline.get(name)))
        if isinstance(source, dict) and source.get("type") not in INLINE:
            yield f"{kind} by {source.get('type')}"


def _sources(part: object) -> Iterator[str]:
    """Yields the keys by which a part refers to something that is not in the request."""
    for name in SOURCES:
        value = part.get(name) if isinstance(part, dict) else None
        where = value.get("url") if isinstance(value, dict) else value
        if where and not DATA.match(str(where)):
            yield name


def _other_kinds(file: object) -> Iterator[str]:
    """Yields the kind of a file that is not read as text is."""
    for name in KINDS:
        kind = file.get(name) if isinstance(file, dict) else None
        if kind is not None and not READ.match(str(kind)):
            yield str(kind)


def _is_url(value: object) -> bool:
    """Says whether a provider may fetch this, or hear it, where it expects the bytes of a file."""
    head = value[:MAX_SCHEME] if isinstance(value, str) else ""
    return ("://" in head or "data:" in head) and not DATA.match(str(value))


class ParsedRequest(NamedTuple):
    """What a request asks for."""

    model: str
    server_tools: tuple[str, ...]
    """What it asks of the provider's servers besides text, outside the sandbox."""


def parse_request(path: str, body: dict[str, Any]) -> ParsedRequest:
    """Returns what a request asks for; `path` is that of the API, without the part that the provider adds."""
    tools = tuple(map(_name, sorted(beyond_text(path, body))[:MAX_TOOLS]))
    return ParsedRequest(_name(body.get("model")), tools)


class AnswerReader:
    """Reads an answer as it passes.

    Args:
        is_stream: Whether it consists of server-sent events; otherwise it is one JSON text.
    """

    def __init__(self, is_stream: bool) -> None:
        self.model = ""
        """The model that answered, as named by the provider."""
        self.used: TokenUse | None = None
        """The tokens used; None if the answer did not report them."""
        self.tier: dict[str, str] = {}
        """The tier of the service that answered, which decides the price; empty if the answer does not say it."""
        self.has_error = False
        """Whether it reports an error, as a stream does that began well."""
        self.is_ended = not is_stream
        """Whether the event has come with which a stream of its dialect ends."""
        self.bytes = 0
        self.is_stream = is_stream
        self._own = self._beside = TokenUse()
        self._kept = bytearray()
        self._is_cut = False

    def feed(self, piece: bytes) -> None:
        """Takes the next piece."""
        self.bytes += len(piece)
        head, newline, tail = piece.rpartition(b"\n") if self.is_stream else (b"", b"", piece)
        if newline:
            self._keep(head)
            self._read_events()
        self._keep(tail)

    def close(self) -> None:
        """Reads the rest, when the answer has ended or was aborted."""
        if self.is_stream:
            self._read_events()
        elif not self._is_cut:
            self._read(bytes(self._kept))
        self._kept.clear()

    def _keep(self, piece: bytes) -> None:
        if len(self._kept) + len(piece) <= MAX_KEPT:
            self._kept += piece
        else:
            self._is_cut = True

    def _read_events(self) -> None:
        if not self._is_cut:
            for line in self._kept.splitlines():
                if line.startswith(b"data:"):
                    self._read(bytes(line[5:]))
        self._kept.clear()
        self._is_cut = False

    def _read(self, text: bytes) -> None:
        self.is_ended |= text.strip() == b"[DONE]"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        for event in value if isinstance(value, list) else [value]:
            if isinstance(event, dict):
                self.is_ended |= _is_last(event)
                for holder in (event, event.get("message"), event.get("response")):
                    if isinstance(holder, dict):
                        self._take(holder)

    def _take(self, holder: dict[str, Any]) -> None:
        self.model = _name(holder.get("model") or holder.get("modelVersion")) or self.model
        self.has_error |= bool(holder.get("error"))
        for usage in (holder.get("usage"), holder.get("usageMetadata")):
            if isinstance(usage, dict):
                # Counts grow from event to event. In each dialect, some of them are reported only at the beginning.
                self._own = self._own.most(tokens_of(usage))
                self._beside = self._beside.most(tokens_beside(usage))
                self.used = self._own.plus(self._beside)
                self.tier |= tier_of(usage)
        self.tier |= tier_of(holder)


def _is_last(event: dict[str, Any]) -> bool:
    """Says whether a stream is complete with this event. Not every server that has OpenAI's chat API sends [DONE]."""
    parts = [part for name in ("choices", "candidates") if isinstance(found := event.get(name), list) for part in found]
    has_reason = any(
        isinstance(part, dict) and (part.get("finish_reason") or part.get("finishReason")) for part in parts
    )
    return has_reason or event.get("type") in LAST_EVENTS or bool(event.get("promptFeedback"))


def tier_of(body: dict[str, Any]) -> dict[str, str]:
    """Returns the tier of the service that a request asks for, or that an answer names. `auto` names none."""
    named = {key: _name(body.get(name)).lower() for name, key in TIERS.items() if body.get(name)}
    return {key: tier for key, tier in named.items() if tier not in ("", "auto")}


def _name(value: object) -> str:
    """Returns a name as it is recorded."""
    return encodable(value[:MAX_NAME]) if isinstance(value, str) else ""
