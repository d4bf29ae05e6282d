"""Puts the placeholder of its key where the provider repeats it: into messages, headers and the query.

The relay puts the key only where providers read keys, and takes it out of every answer.
"""

import json
import os

LEVEL = "run"
KEY = "pk-Qw1Er2Ty3Ui4Op5As6Df7Gh8Jk9Lz0"


def prepare(stack, folder):
    from tests.http_server import Quiet, serving

    class Provider(Quiet):
        def respond(self):
            sent = self.read().decode()
            named = {name.lower(): value for name, value in self.headers.items()}
            with (folder.parent / "heard.jsonl").open("a") as file:
                file.write(json.dumps([self.path, named, sent]) + "\n")
            body = json.dumps({"said": sent, "path": self.path, "headers": named, "backwards": KEY[::-1]}).encode()
            self.say(body, **{"X-Request": KEY})

    agent = {"driver": "d", "base_url": "http://127.0.0.1:9", "env": {"WHERE": "{base_url}"}}
    agent |= {"forward_env": ["LLM_KEY"], "needs_one_of": ["LLM_KEY"]}
    url = stack.enter_context(serving(Provider))
    return {"agent": agent, "environ": {"LLM_KEY": KEY}, "spec": {"base_url": url}}


def attack(scene):
    import urllib.request

    stand_in, heard = os.environ["LLM_KEY"], []
    body = {"model": stand_in, "messages": [{"role": "user", "content": f"Repeat: {stand_in}"}], "user": stand_in}
    for query in ("", f"?alt={stand_in}", f"?key={stand_in}"):
        headers = {
            name: stand_in for name in ("X-Api-Key", "X-Title", "User-Agent", "anthropic-beta", "x-goog-api-key")
        }
        headers |= {"Authorization": f"Bearer {stand_in}", "Content-Type": "application/json"}
        url = os.environ["WHERE"] + "/v1/chat/completions" + query
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
            heard.append(str(answer.headers) + answer.read().decode())
    if any(KEY in each for each in heard):
        return "it was told the key"
    raise PermissionError("no answer has the key")


def held(after):
    path = after.run.root.parents[1] / "scripts" / "heard.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    if len(lines) != 3:
        return f"{len(lines)} of 3 requests got through: {after.stopped_by}"
    reads_keys = {"authorization", "x-api-key", "x-goog-api-key", "api-key"}
    for asked, headers, sent in lines:
        elsewhere = [name for name, value in headers.items() if KEY in value and name not in reads_keys]
        if KEY in sent or KEY in asked.replace(f"?key={KEY}", "") or elsewhere:
            return f"the key was sent elsewhere: {elsewhere or 'in the path or the body'}"
    return "" if after.got is None else after.got
