"""Lets another model than the driver, and the provider's own search, do the work, and reports neither.

The record and the report name every model and every tool of the provider's that was asked for.
"""

import json
import os
import urllib.request

LEVEL = "run"
SCENARIO = """
turns: [{say: Done.}]
asides: [{asked: hi, say: hello}]
"""


def prepare(stack, folder):
    from a2rl.driver.server import driver_process

    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO)
    url = stack.enter_context(driver_process(str(scenario), folder.parent / "served.jsonl"))
    agent = {"driver": "the-driver", "base_url": "http://127.0.0.1:9", "env": {"WHERE": "{base_url}"}}
    return {"agent": agent, "spec": {"base_url": url}}


def attack(scene):
    said = [{"role": "user", "content": "hi"}]
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    ask("/v1/messages", {"model": "the-driver", "max_tokens": 9, "messages": said})
    ask("/v1/messages", {"max_tokens": 9, "messages": said}, b'{"model": "the-driver", "model": "a-stronger-one", ')
    ask("/v1/messages", {"model": "a-cheaper-one", "max_tokens": 9, "messages": said, "tools": tools})
    ask("/v1/chat/completions", {"model": "a-third", "messages": said, "web_search_options": {"a": 1}})


def ask(path, body, beginning=b"{"):
    request(path, beginning + json.dumps(body).encode()[1:])


def request(path, body):
    asked = urllib.request.Request(os.environ["WHERE"] + path, body, {"Content-Type": "application/json"})
    return urllib.request.urlopen(asked, timeout=60).read()


def held(after):
    from a2rl.records import ExecuteRecord

    served = after.run.root.parents[1] / "scripts" / "served.jsonl"
    models = {json.loads(line)["model"] for line in served.read_text().splitlines()}
    if len(models) < 3:
        return f"the attack did not get through: {models}"
    record, page = after.run.read("execute", ExecuteRecord), after.run.report.read_text()
    hidden = [model for model in models - {"the-driver"} if model not in page]
    if record is None or record.seen is None or hidden:
        return f"the report does not name {', '.join(hidden) or 'any model'}"
    return "" if "web_search_20250305" in page else "the report does not name the provider's search"
