"""Reaches the internet by the provider of its LLM, which would fetch pages and files, run code, or recall prompts.

The relay passes on only requests for text, in every dialect. Hosted tools, URLs, files, stored prompts, cached contents
and other providers' models are refused, also where they are nested or named twice.
"""

import json
import os

LEVEL = "run"
URL = "https://example.org/answers.pdf"
MESSAGES, CHAT, RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
GOOGLE = "/v1beta/models/gemini-2.5-pro:generateContent"


def says(**part):
    return [{"role": "user", "content": [part]}]


ASKED = (
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    (MESSAGES, {"tools": [{"type": "a_tool_of_next_year", "input_schema": {}}]}),
    (MESSAGES, {"mcp_servers": [{"type": "url", "url": URL}]}),
    (MESSAGES, {"messages": says(type="image", source={"type": "url", "url": URL})}),
    (MESSAGES, {"messages": says(type="document", source={"type": "base64", "url": URL})}),
    (MESSAGES, {"messages": says(type="tool_result", content=[{"type": "image", "source": {"type": "url"}}])}),
    (MESSAGES, {"container": "container_1"}),
    (CHAT, {"model": "the-driver:online"}), (CHAT, {"web_search_options": {}}), (CHAT, {"plugins": [{"id": "web"}]}),
    (CHAT, {"messages": says(type="image_url", image_url={"url": URL})}), (CHAT, {"models": ["a", "b"]}),
    (CHAT, {"messages": says(type="image_url", image_url=" data:\n" + URL)}),
    (RESPONSES, {"tools": [{"type": "namespace", "tools": [{"type": "code_interpreter"}]}]}),
    (RESPONSES, {"prompt": {"id": "pmpt_1"}}), (RESPONSES, {"previous_response_id": "resp_1"}),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}), (RESPONSES, {"conversation": "conv_1"}),
    (RESPONSES, {"input": says(type="input_file", file_url=URL)}), (RESPONSES, {"tools": [{"type": "mcp"}]}),
    (GOOGLE, {"tools": [{"urlContext": {}}]}), (GOOGLE, {"tools": {"code_execution": {}}}),
    (GOOGLE, {"cachedContent": "cachedContents/1"}), (GOOGLE, {"cached_content": "cachedContents/1"}),
    (GOOGLE, {"contents": [{"role": "user", "parts": [{"text": "", "file_data": {"file_uri": URL}}]}]}),
)  # fmt: skip
TWICE = b'{"model": "the-driver", "tools": [], "tools": [{"type": "web_search"}], "messages": []}'
ODD = (
    "/v1/chat/./completions",
    "/v1/models/..",
    "/v1/chat/completions/../../files",
    "/v1/chat//completions",
    "/v1/RESPONSES",
)


def prepare(stack, folder):
    from tests.redteam.look import serve_llm

    return serve_llm(stack, folder)


def attack(scene):
    plain = {"model": "the-driver", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    where, passed = os.environ["WHERE"], []
    for path, more in ASKED:
        status, _ = scene.request(path, plain | more, server=where)
        passed += [f"{path} {json.dumps(more)}: {status}"] if status != 403 else []
    for path in (MESSAGES, CHAT, RESPONSES):
        status, _ = scene.request(path, TWICE, server=where)
        passed += [f"{path} twice: {status}"] if status != 403 else []
    for path in ODD:
        status, _ = scene.request(path, plain, server=where)
        passed += [f"{path}: {status}"] if status < 400 else []
    status, _ = scene.request(CHAT, plain, server=where)
    if status != 200:
        passed.append(f"a plain request is answered {status}")
    if passed:
        return passed
    raise PermissionError(f"{len(ASKED) + 3 + len(ODD)} requests were refused")


def held(after):
    from tests.redteam.look import llm_requests

    if after.got is not None:
        return after.got
    reached = len(llm_requests(after, "ask_the_provider_to_fetch"))
    return (
        ""
        if reached == 1 and after.stopped_by.startswith("PermissionError")
        else f"{reached} reached it; {after.stopped_by}"
    )
