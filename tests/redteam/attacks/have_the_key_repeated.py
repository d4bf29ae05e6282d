"""Puts the placeholder of its key where the provider repeats it: into messages, headers and the query.

The relay puts the key only where providers read keys, and takes it out of every answer.
"""

import json
import os
import threading

LEVEL = "run"
KEY = "pk-Qw1Er2Ty3Ui4Op5As6Df7Gh8Jk9Lz0"


def prepare(stack, folder):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self):
            sent = self.rfile.read(int(self.headers["Content-Length"])).decode()
            named = {name.lower(): value for name, value in self.headers.items()}
            with (folder.parent / "heard.jsonl").open("a") as file:
                file.write(json.dumps([self.path, named, sent]) + "\n")
            body = json.dumps({"said": sent, "path": self.path, "headers": named, "backwards": KEY[::-1]}).encode()
            self.send_response(200)
            self.send_header("X-Request", KEY)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            return

    server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Provider))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    agent = {"driver": "d", "base_url": "http://127.0.0.1:9", "env": {"WHERE": "{base_url}"}}
    agent |= {"forward_env": ["LLM_KEY"], "needs_one_of": ["LLM_KEY"]}
    url = f"http://127.0.0.1:{server.server_address[1]}"
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
