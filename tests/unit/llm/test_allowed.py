"""Tests what a request may ask of the provider: nothing beyond the request itself, in all four dialects."""

import time
from typing import Any

import pytest

from a2rl.llm.relay.messages import beyond_text

MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
GOOGLE = "/v1beta/models/gemini-2.5-pro:streamGenerateContent"
URL = "https://example.org/a.pdf"
SCHEMA = {"type": "object", "properties": {"url": {"type": "web_search", "file_id": "x"}}}


def says(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def gemini(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": list(parts)}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        (MESSAGES, {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
        (MESSAGES, {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}),
        (MESSAGES, {"tools": [{"type": "a_tool_of_next_year", "input_schema": {}}]}),
        (MESSAGES, {"mcp_servers": [{"type": "url", "url": URL}]}),
        (MESSAGES, {"container": "container_1"}),
        (MESSAGES, {"messages": says({"type": "image", "source": {"type": "url", "url": URL}})}),
        (MESSAGES, {"messages": says({"type": "document", "source": {"type": "file", "file_id": "file_1"}})}),
        (MESSAGES, {"messages": says({"type": "document", "source": {"type": "base64", "url": URL}})}),
        (MESSAGES, {"messages": says({"type": "container_upload", "file_id": "file_1"})}),
        (
            MESSAGES,
            {"messages": says({"type": "tool_result", "content": [{"type": "image", "source": {"type": "url"}}]})},
        ),
        (MESSAGES, {"messages": says({"type": ["text"]}), "system": [{"type": "server_tool_use"}]}),
        (CHAT, {"web_search_options": {}, "model": "m"}),
        (CHAT, {"plugins": [{"id": "web"}]}),
        (CHAT, {"search_parameters": {"mode": "on"}}),
        (CHAT, {"model": "anthropic/claude-sonnet-4.5:online"}),
        (CHAT, {"model": "gpt-4o-search-preview"}),
        (CHAT, {"model": "perplexity/sonar-pro"}),
        (CHAT, {"models": ["a", "b"]}),
        (CHAT, {"tools": [{"type": "openrouter:web_search"}]}),
        (CHAT, {"messages": says({"type": "image_url", "image_url": {"url": URL}})}),
        (CHAT, {"messages": says({"type": "image_url", "image_url": URL})}),
        (CHAT, {"messages": says({"type": "file", "file": {"file_id": "file_1"}})}),
        (CHAT, {"messages": says({"type": "video_url", "video_url": {"url": "data:x"}})}),
        (RESPONSES, {"tools": [{"type": "web_search_preview"}]}),
        (RESPONSES, {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}),
        (RESPONSES, {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
        (RESPONSES, {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
        (RESPONSES, {"tools": [{"type": "mcp", "server_url": URL}]}),
        (RESPONSES, {"tools": [{"type": "namespace", "tools": [{"type": "image_generation"}]}]}),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}),
        (RESPONSES, {"conversation": "conv_1"}),
        (RESPONSES, {"previous_response_id": "resp_1"}),
        (RESPONSES, {"input": says({"type": "input_file", "file_url": URL})}),
        (RESPONSES, {"input": says({"type": "input_image", "image_url": {"url": URL}})}),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        (RESPONSES, {"input": [{"id": "msg_1"}]}),
        (RESPONSES, {"input": [{"id": "msg_1", "type": None, "role": "user", "content": None}]}),
        (RESPONSES, {"input": [{"type": "tool_search_output", "tools": [{"type": "mcp", "server_url": URL}]}]}),
        (RESPONSES, {"input": [{"type": "tool_search_output", "tools": [{"type": "web_search"}]}]}),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "file_id": "f"}]}]}),
        (GOOGLE, {"tools": [{"googleSearch": {}, "functionDeclarations": []}]}),
        (GOOGLE, {"tools": [{"urlContext": {}}]}),
        (GOOGLE, {"tools": {"codeExecution": {}}}),
        (GOOGLE, {"tools": [{"type": "function", "google_maps": {}}]}),
        (GOOGLE, {"cachedContent": "cachedContents/1"}),
        (GOOGLE, {"contents": gemini({"fileData": {"fileUri": URL}})}),
        (GOOGLE, {"contents": gemini({"type": "text", "text": "", "file_data": {"file_uri": URL}})}),
        (GOOGLE, {"contents": gemini({"functionResponse": {"name": "a", "parts": [{"fileData": {}}]}})}),
        (GOOGLE.replace("streamGenerateContent", "countTokens"), {"generateContentRequest": {"cachedContent": "c"}}),
        (GOOGLE, {"systemInstruction": {"parts": [{"file_data": {}}]}}),
        (GOOGLE, {"generateContentRequest": {"generateContentRequest": {}}}),
        (CHAT, {"messages": says({"type": "file", "file": {"filename": "a.pdf", "file_data": URL}})}),
        (CHAT, {"messages": says({"type": "input_audio", "input_audio": {"data": URL, "format": "mp3"}})}),
        (RESPONSES, {"input": says({"type": "input_file", "file_data": URL})}),
        (CHAT, {"messages": says({"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}})}),
        (CHAT, {"messages": says({"type": "image_url", "image_url": {"url": "data:audio/mp3;base64,AA=="}})}),
        (CHAT, {"messages": says({"type": "image_url", "video_url": "data:video/mp4;base64,AA=="})}),
        (CHAT, {"messages": says({"type": "file", "file": {"file_data": "data:audio/mp3;base64,AA=="}})}),
        (CHAT, {"messages": says({"type": "file", "file": {"file_data": "AA==", "format": "audio/mp3"}})}),
        (CHAT, {"modalities": ["text", "audio"]}),
        (CHAT, {"modalities": "image"}),
        (MESSAGES, {"messages": says({"type": "image", "source": {"type": "base64", "media_type": "audio/mp3"}})}),
        (GOOGLE, {"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}),
        (GOOGLE, {"generation_config": {"response_modalities": [2]}}),
        (GOOGLE, {"generationConfig": {"speechConfig": {"languageCode": "en-US"}}}),
        (GOOGLE, {"generationConfig": {"speech_config": {}}}),
        (GOOGLE, {"generationConfig": {"routingConfig": {"manualMode": {"modelName": "another"}}}}),
        (GOOGLE, {"generateContentRequest": {"generationConfig": {"a_setting_of_next_year": 1}}}),
        (GOOGLE, {"contents": gemini({"inlineData": {"mimeType": "audio/mp3", "data": "AA=="}})}),
        (GOOGLE, {"contents": gemini({"inline_data": {"mime_type": "video/mp4", "data": "AA=="}})}),
        (GOOGLE, {"contents": gemini({"functionResponse": {"parts": [{"inlineData": {"mimeType": "audio/x"}}]}})}),
        (CHAT, {"model": "gpt-5.4:online\n"}),
        (CHAT, {"model": "m" * 10_000}),
    ],
)
def test_what_is_no_text_or_would_be_fetched_or_run_is_found(path: str, body: dict[str, Any]) -> None:
    assert beyond_text(path, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            MESSAGES,
            {
                "model": "claude-opus-4-6", "max_tokens": 9, "stream": True, "system": [{"type": "text", "text": "a"}],
                "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "context_management": {"edits": []},
                "tools": [
                    {"name": "Bash", "input_schema": SCHEMA}, {"type": "custom", "name": "a", "input_schema": SCHEMA},
                    {"type": "bash_20250124", "name": "bash"},
                ],
                "messages": [
                    *says({"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}),
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "tool_use", "id": "1", "name": "Bash", "input": {"url": URL, "type": "web_search"}},
                    ]},
                    *says(
                        {"type": "tool_result", "tool_use_id": "1", "content": "https://example.org"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                        {"type": "document", "source": {"type": "text", "data": "a"}},
                    ),
                ],
            },
        ),
        (
            CHAT,
            {
                "model": "gpt-5.4", "stream_options": {"include_usage": True}, "parallel_tool_calls": True,
                "tools": [{"type": "function", "function": {"name": "web_search", "parameters": SCHEMA}}],
                "messages": [
                    {"role": "system", "content": "a"},
                    {"role": "assistant", "content": None, "audio": None, "reasoning_content": "hm",
                     "provider_specific_fields": {"refusal": None}, "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}]},
                    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": URL}]},
                    *says(
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}},
                    ),
                ],
            },
        ),
        (
            RESPONSES,
            {
                "model": "gpt-5.5", "instructions": "a", "store": False, "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "k", "client_metadata": {"a": "b"}, "text": {"verbosity": "low"},
                "tools": [
                    {"type": "function", "name": "shell", "parameters": SCHEMA}, {"type": "local_shell"},
                    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
                    {"type": "shell", "environment": {"type": "local"}},
                    {"type": "namespace", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
                ],
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": ""},
                    {"type": "function_call", "call_id": "1", "name": "shell", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "1", "output": "https://example.org"},
                    {"role": "assistant", "content": [
                        {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation", "url": URL}]}]},
                    {"id": "msg_1", "role": "assistant", "content": "a"},
                    {"type": "tool_search_output", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
                    {"type": "shell_call_output", "call_id": "1", "output": [
                        {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
                ],
            },
        ),
        (
            GOOGLE,
            {
                "systemInstruction": {"role": "user", "parts": [{"text": "a"}]}, "generationConfig": {
                    "topP": 1, "top_k": 20, "maxOutputTokens": 9, "responseModalities": ["Text"], "speechConfig": None,
                    "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 9}, "responseSchema": SCHEMA},
                "tools": [{"functionDeclarations": [{"name": "shell", "parametersJsonSchema": SCHEMA}]}],
                "contents": [
                    *gemini(
                        {"text": "go"}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}},
                        {"inlineData": {"mimeType": "application/pdf", "data": "AA=="}},
                    ),
                    {"role": "model", "parts": [{"functionCall": {"name": "shell", "args": {"fileData": URL}},
                                                 "thoughtSignature": "s"}]},
                    *gemini({"functionResponse": {"name": "shell", "response": {"output": URL, "type": "x"}}}),
                ],
            },
        ),
    ],
)  # fmt: skip
def test_an_ordinary_request_of_an_agent_asks_for_text(path: str, body: dict[str, Any]) -> None:
    assert beyond_text(path, body) == set()


EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
FUNCTION = {"type": "function", "function": {"name": "shell", "parameters": SCHEMA, "strict": True}}
CALL = {"id": "1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "a", **EPHEMERAL}]},
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": [{"type": "text", "text": "so"}], "tool_calls": [CALL], "reasoning_content": "hm",
     "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
    {"role": "tool", "tool_call_id": "1", "name": "shell", "content": [{"type": "text", "text": URL}], **EPHEMERAL},
]  # fmt: skip
CALLED = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
    {"type": "function_call", "id": "f", "call_id": "1", "name": "shell", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": URL}]},
]
CACHED = {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "store": False}
LITELLM: dict[str, tuple[str, dict[str, Any]]] = {
    "OpenHands, a model with the Responses API": (
        RESPONSES,
        {"include": ["reasoning.encrypted_content"], "input": CALLED, "instructions": "a", "max_output_tokens": 16384,
         "reasoning": {"effort": "high"}, "tool_choice": "auto", **CACHED,
         "tools": [{"type": "function", "name": "shell", "description": "a", "parameters": SCHEMA, "strict": False}]},
    ),
    "OpenHands, another model": (
        CHAT,
        {"messages": CONVERSATION, "tools": [FUNCTION], "max_tokens": 64000, "max_completion_tokens": 64000,
         "prompt_cache_key": "k", "reasoning_effort": "high"},
    ),
    "RD-Agent": (
        CHAT,
        {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "go"}], "temperature": 0.5,
         "response_format": {"type": "json_object"}},
    ),
    "every setting of the chat API": (
        CHAT,
        {"messages": CONVERSATION, "tools": [FUNCTION], "tool_choice": "auto", "parallel_tool_calls": True,
         "stream": True, "stream_options": {"include_usage": True}, "temperature": 1, "top_p": 0.9, "n": 1, "seed": 1,
         "stop": ["x"], "max_tokens": 9, "max_completion_tokens": 9, "presence_penalty": 0, "frequency_penalty": 0,
         "logit_bias": {"1": 1}, "logprobs": True, "top_logprobs": 2, "modalities": ["text"], "verbosity": "low",
         "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "user": "u",
         "metadata": {"a": "b"}, "service_tier": "default", "reasoning_effort": "high", **CACHED},
    ),
    "a server of one's own, with extra_body": (
        CHAT,
        {"messages": CONVERSATION, "tools": [FUNCTION], "chat_template_kwargs": {"enable_thinking": True}, "top_k": 20,
         "min_p": 0, "repetition_penalty": 1.0},
    ),
    "the Responses API in place of the chat API": (
        RESPONSES,
        {"input": CALLED, "tools": [{"type": "function", "name": "shell", "parameters": SCHEMA, "strict": True}],
         "text": {"format": {"type": "json_object"}, "verbosity": "low"}, "reasoning": {"effort": "high"},
         "parallel_tool_calls": True, "stream": True, "temperature": 1, "tool_choice": "auto", "user": "u",
         "truncation": "disabled", "metadata": {"a": "b"}, "service_tier": "default", **CACHED},
    ),
    "Anthropic's own API": (
        MESSAGES,
        {"system": [{"type": "text", "text": "a", **EPHEMERAL}], "max_tokens": 9, "stop_sequences": ["x"],
         "metadata": {"user_id": "u"}, "service_tier": "standard_only", "temperature": 1, "top_p": 0.9, "stream": True,
         "thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"},
         "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
         "tools": [{"type": "custom", "name": "shell", "description": "a", "input_schema": SCHEMA}],
         "messages": [
            *says({"type": "text", "text": "go"}),
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "1", "name": "shell", "input": {}}]},
            *says({"type": "tool_result", "tool_use_id": "1", "content": URL, **EPHEMERAL}),
         ]},
    ),
}  # fmt: skip
"""What openhands-sdk 1.58.0, rdagent 1.0.0 and LiteLLM 1.110.2 sent to a server that wrote it down; texts are ours."""


@pytest.mark.parametrize(("path", "body"), LITELLM.values(), ids=LITELLM)
def test_what_agents_send_through_litellm_asks_for_text(path: str, body: dict[str, Any]) -> None:
    assert beyond_text(path, {"model": "gpt-5.4", **body}) == set()


@pytest.mark.parametrize("part", ["search-api", "/compound", "deep-research"])
def test_a_long_name_of_a_model_takes_no_time(part: str) -> None:
    began = time.process_time()
    assert beyond_text(CHAT, {"model": part * 100_000 + "\n", "messages": []})
    assert time.process_time() - began < 5


@pytest.mark.parametrize("path", [MESSAGES, CHAT, RESPONSES, GOOGLE])
def test_nonsense_is_no_error(path: str) -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    values: list[Any] = [None, 3, "text", [], {}, [None, 3, [[]]], {"type": {}}, {"content": {"content": 1}}, deep]
    nested: Any = {}
    for _ in range(480):
        nested = {"generateContentRequest": nested}
    for value in [*values, nested]:
        names = ("tools", "messages", "input", "contents", "system", "model", "generateContentRequest", "modalities")
        beyond_text(path, {**dict.fromkeys(names, value), "generationConfig": {"responseModalities": value}})
