"""Uses another model than its driver, and the provider's own search, without saying so.

The record and the report name every model and every tool of the provider that was requested. Tools are refused.
"""

import json
import os

LEVEL = "run"


def prepare(stack, folder):
    from tests.redteam.look import serve_llm

    return serve_llm(stack, folder)


def attack(scene):
    said = [{"role": "user", "content": "hi"}]
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    twice = b'{"model": "the-driver", "model": "a-stronger-one", '
    for path, body in (
        ("/v1/messages", {"model": "the-driver", "max_tokens": 9, "messages": said}),
        ("/v1/messages", twice + json.dumps({"max_tokens": 9, "messages": said}).encode()[1:]),
        ("/v1/messages", {"model": "a-cheaper-one", "max_tokens": 9, "messages": said, "tools": tools}),
        ("/v1/chat/completions", {"model": "a-third", "messages": said}),
        ("/v1/chat/completions", {"model": "a-fourth", "messages": said, "web_search_options": {"a": 1}}),
    ):
        scene.request(path, body, server=os.environ["WHERE"])


def held(after):
    from a2rl.run.records import ExecuteRecord
    from tests.redteam.look import llm_requests

    models = {request["model"] for request in llm_requests(after, "use_another_model")}
    if "a-fourth" in models or "a-cheaper-one" in models:
        return "a request for the provider's search got through"
    if len(models) < 3:
        return f"the attack did not get through: {models}"
    record, page = after.run.read("execute", ExecuteRecord), after.run.report.read_text()
    hidden = [model for model in models - {"the-driver"} if model not in page]
    if record is None or record.seen is None or hidden:
        return f"the report does not name {', '.join(hidden) or 'any model'}"
    return "" if "web_search_20250305" in page else "the report does not name the provider's search"
