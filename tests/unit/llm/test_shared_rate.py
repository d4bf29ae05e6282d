"""Tests the rate of requests that all runs share, against an API that answers as Prefect does."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.llm.relay.process import SharedRate, limit_name


class Limits(BaseHTTPRequestHandler):
    """Prefect's limits: so many slots are free, and a locked limit says when to ask again."""

    api: str
    free: int
    asked: list[tuple[str, str, dict[str, object]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers.get("Authorization", ""), body))
        type(self).free -= 1
        self.send_response(200 if self.free >= 0 else 423)
        self.send_header("Retry-After", "0.1")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def limits() -> Iterator[type[Limits]]:
    kind: type[Limits] = type("TheseLimits", (Limits,), {"api": "", "free": 1, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        kind.api = f"http://127.0.0.1:{server.server_address[1]}/api"
        yield kind
        server.shutdown()


def wait(rate: SharedRate, most_s: float) -> tuple[bool, float]:
    async def ask() -> bool:
        async with httpx.AsyncClient() as http:
            return await rate.wait(http, most_s)

    began = time.monotonic()
    return asyncio.run(ask()), time.monotonic() - began


def test_a_free_slot_is_taken_at_once_as_of_a_rate_limit(limits: type[Limits]) -> None:
    rate = SharedRate(api=limits.api, auth="user:password", name=limit_name("api.example.com"))
    assert wait(rate, 60)[0]
    [(path, authorization, body)] = limits.asked
    assert path == "/api/v2/concurrency_limits/increment"
    assert authorization.startswith("Basic ")
    assert body == {"names": ["a2rl-llm-api.example.com"], "slots": 1, "mode": "rate_limit"}


def test_a_request_waits_for_a_slot_but_not_for_ever(limits: type[Limits]) -> None:
    limits.free = 0
    got, waited_s = wait(SharedRate(api=limits.api, name="x"), 0.5)
    assert not got
    assert 0.4 < waited_s < 10
    assert len(limits.asked) >= 2


def test_a_server_that_is_down_holds_nobody_up() -> None:
    got, waited_s = wait(SharedRate(api="http://127.0.0.1:9/api", name="x"), 60)
    assert not got
    assert waited_s < 10


def test_only_a_host_with_a_rate_is_limited_where_a_server_runs(settings: Settings) -> None:
    served = Settings(settings.root, {"PREFECT_API_URL": "http://127.0.0.1:4200/api/"})
    rates = {"api.example.com": 50}
    assert SharedRate.of("api.example.com", rates, settings) is None
    assert SharedRate.of("other.example.com", rates, served) is None
    found = SharedRate.of("api.example.com", rates, served)
    assert found == SharedRate(api="http://127.0.0.1:4200/api", name="a2rl-llm-api.example.com")


def test_a_url_is_no_host() -> None:
    with pytest.raises(UsageError, match="is not a valid host"):
        limit_name("https://api.example.com/v1")
