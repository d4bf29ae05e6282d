"""Uses many times its quota of tokens: it reports none, asks in parallel, hangs up early, and never asks for usage.

A quota holds for what was asked with the key: a few requests beyond it at most.
"""

import json
import os
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

LEVEL = "run"
QUOTA = 5_000
EACH = 1_100
SPEC = {"max_tokens": QUOTA, "budget": "20s"}
SCENARIO = """
turns: [{say: Done.}]
asides: [{asked: hi, say: hello}]
"""


def prepare(stack, folder):
    from a2rl.driver.server import driver_process

    scenario = folder / "scenario.yaml"
    scenario.write_text(SCENARIO)
    url = stack.enter_context(driver_process(str(scenario), folder.parent / "served-quota.jsonl"))
    agent = {"driver": "the-driver", "base_url": "http://127.0.0.1:9", "env": {"WHERE": "{base_url}"}}
    agent["transcript"] = {"format": "claude-code", "from": "stdout"}
    return {"agent": agent, "spec": {"base_url": url}}


def attack(scene):
    for _ in range(12):
        threading.Thread(target=ask_without_end, daemon=True).start()
        threading.Thread(target=hang_up_without_end, daemon=True).start()
    time.sleep(60)
    return "it was never ended"


def body_of(stream):
    said = {"model": "the-driver", "stream": stream, "messages": [{"role": "user", "content": "hi " + "x" * 4 * EACH}]}
    return json.dumps(said).encode()


def ask_without_end():
    while True:
        asked = urllib.request.Request(
            os.environ["WHERE"] + "/v1/chat/completions", body_of(True), {"Content-Type": "application/json"}
        )
        with suppress(OSError):
            urllib.request.urlopen(asked, timeout=60).read()
        time.sleep(0.01)


def hang_up_without_end():
    place = urlsplit(os.environ["WHERE"])
    while True:
        with suppress(OSError), socket.create_connection((place.hostname, place.port), timeout=20) as client:
            body = body_of(False)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
        time.sleep(0.01)


def held(after):
    from a2rl.records import ExecuteRecord

    served = after.run.root.parents[1] / "scripts" / "served-quota.jsonl"
    lines = [json.loads(line) for line in served.read_text().splitlines()]
    used = sum(line["input_tokens"] + line["output_tokens"] for line in lines)
    record = after.run.read("execute", ExecuteRecord)
    if used > QUOTA + 5 * EACH:
        return f"it used {used} tokens of a quota of {QUOTA}"
    if record is None or record.ended != "quota" or record.seen is None:
        return "it was not ended for its quota"
    return "" if record.seen.tokens >= used else f"{record.seen.tokens} tokens were seen of {used}"
