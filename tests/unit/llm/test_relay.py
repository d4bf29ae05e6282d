"""Tests the relay to the LLM: what it passes on, what it counts, and what the agent never gets."""

import gzip
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2rl.agent_systems.transcripts.ending import REDIRECTED, UNRECORDED, FailedRequest, ending
from a2rl.config.params import TokenPrices
from a2rl.core.event_log import MAX_BYTES, ROOM
from a2rl.core.files import _exchange
from a2rl.core.settings import Settings
from a2rl.execution.attempt import UsageLimits
from a2rl.llm.keys import PLACEHOLDER_KEY
from a2rl.llm.relay.messages import AnswerReader
from a2rl.llm.relay.process import RelayProcess
from a2rl.llm.relay.request_log import (
    OTHERS,
    Request,
    RequestLogReader,
    failed_requests,
    read_llm_use,
    request_log_path,
)
from a2rl.mock_llm import anthropic_messages, gemini, openai_chat, openai_responses
from a2rl.mock_llm.dialogue import Call, Dialect, LlmRequest, Reply
from a2rl.mock_llm.scenario import Usage
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded
from a2rl.run.records import LlmUse
from a2rl.run.rules import Listed, rules
from tests.http_server import Quiet, serving
from tests.run_maker import wait_for

KEY, STAND_IN = "pk-real-key-of-the-provider", "a2rl-stands-for-it"
TOOK = Usage(input_tokens=700, output_tokens=50, cached_tokens=200)
NONSENSE = b'{"usage": {"prompt_tokens": -5, "completion_tokens": "9", "input_tokens": true, "output_tokens": 1e9}}'
DIALECTS = [anthropic_messages, openai_chat, openai_responses, gemini]


class Provider(Quiet):
    """A fake provider that gives prepared answers and records the requests."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, dict[str, str], bytes]]
    answer: Callable[["Provider", dict[str, Any]], None]

    def respond(self) -> None:
        if self.command == "GET":
            self.say(b'{"data": []}')
            return
        body = self.read()
        headers = {name.lower(): value for name, value in self.headers.items()}
        type(self).asked.append((self.path, headers, body))
        type(self).answer(self, json.loads(body))


def chat(provider: Provider, body: dict[str, Any]) -> None:
    """Returns an answer of OpenAI's chat API."""
    usage = {"prompt_tokens": 700, "completion_tokens": 50}
    provider.say(json.dumps({"model": body.get("model", ""), "choices": [], "usage": usage}).encode())


@pytest.fixture
def provider() -> Iterator[type[Provider]]:
    kind = type("OneProvider", (Provider,), {"asked": [], "answer": chat})
    with serving(kind) as kind.url:  # type: ignore[attr-defined]
        yield kind


@pytest.fixture
def relay(provider: Any, settings: Settings, run: RunDir) -> Iterator[RelayProcess]:
    with RelayProcess(run, settings, provider.url + "/api/v1", {"THE_KEY": KEY}, {"THE_KEY": STAND_IN}) as running:
        yield running


def post(relay: RelayProcess, path: str = "/api/v1/chat/completions", **body: Any) -> httpx.Response:
    headers = {
        "Authorization": f"Bearer {STAND_IN}",
        "X-Api-Key": STAND_IN,
        "Cookie": "a=b",
        "anthropic-beta": "yes",
        "x-forged": STAND_IN,
    }
    url = f"http://127.0.0.1:{relay.port}{path}"
    return httpx.post(url, json={"model": "a-model", **body}, headers=headers, timeout=60, trust_env=False)


def seen(run: RunDir, requests: int) -> LlmUse:
    """Waits until the log has this many requests, and returns it."""
    log = RequestLogReader(request_log_path(run))
    use: LlmUse = wait_for(lambda: use if (use := log.read()).requests >= requests else None, 30)
    return use


def test_a_request_goes_on_with_the_key_that_the_agent_never_has(
    relay: RelayProcess, provider: Any, run: RunDir
) -> None:
    assert post(relay, "/api/v1/chat/completions?key=" + STAND_IN, messages=[]).json()["usage"]["prompt_tokens"] == 700
    [(path, headers, body)] = provider.asked
    assert path == f"/api/v1/chat/completions?key={KEY}"
    assert (headers["authorization"], headers["x-api-key"], headers["anthropic-beta"]) == (f"Bearer {KEY}", KEY, "yes")
    assert not {"cookie", "x-forged"} & headers.keys()
    assert headers["host"] == provider.url.removeprefix("http://")
    assert json.loads(body) == {"model": "a-model", "messages": []}
    use = seen(run, 1)
    assert (use.prompt_tokens, use.completion_tokens, use.estimated) == (700, 50, 0)
    logs = [path.read_text() for path in run.logs.iterdir()]
    assert not any(KEY in text for text in logs)


def test_a_provider_is_reached_through_the_users_own_proxy(provider: Any, settings: Settings, run: RunDir) -> None:
    settings.environ["http_proxy"] = provider.url
    with RelayProcess(run, settings, "http://api.test/api/v1", {"THE_KEY": KEY}, {"THE_KEY": STAND_IN}) as relay:
        assert post(relay).status_code == 200
    [(path, headers, _)] = provider.asked
    assert (path, headers["host"]) == ("http://api.test/api/v1/chat/completions", "api.test")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_tokens_of_every_dialect_are_read(dialect: Dialect, stream: bool) -> None:
    question = LlmRequest("a-model", stream, (), options={"include_usage": True})
    reply = Reply("a word", Call("shell", {"command": "ls"}), TOOK)
    answer = "".join(dialect.events(question, reply)) if stream else json.dumps(dialect.whole(question, reply))
    for size in (1, 7, 100_000):
        reader, data = AnswerReader(stream), answer.encode()
        for place in range(0, len(data), size):
            reader.feed(data[place : place + size])
        reader.close()
        assert reader.used == (700, 50, 200, 0, 0)
        assert reader.model == "a-model"
        assert reader.is_ended


@pytest.mark.parametrize("garbage", [b"", b"{", b"[[[" * 100_000, b"data: {}\n\n", b"\xff" * 100, NONSENSE])
def test_an_answer_that_says_nothing_says_nothing(garbage: bytes) -> None:
    for stream in (True, False):
        reader = AnswerReader(stream)
        reader.feed(garbage)
        reader.close()
        assert not reader.used or reader.used.total == 0


def test_streams_of_the_chat_api_are_asked_for_their_tokens(relay: RelayProcess, provider: Any) -> None:
    post(relay, stream=True)
    assert json.loads(provider.asked[0][2])["stream_options"] == {"include_usage": True}


def test_an_answer_that_does_not_say_what_it_took_is_estimated(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    provider.answer = lambda handler, body: handler.say(b'{"text": "' + b"x" * 4000 + b'"}')
    post(relay, messages=["y" * 8000])
    use = seen(run, 1)
    assert use.estimated == 1
    assert use.prompt_tokens >= 2000
    assert use.completion_tokens >= 1000


def cut_off(provider: Provider, body: dict[str, Any]) -> None:
    """Begins a stream and closes the connection."""
    provider.send_response(200)
    provider.send_header("Content-Type", "text/event-stream")
    provider.send_header("Content-Length", "1000")
    provider.end_headers()
    provider.wfile.write(b'data: {"choices": []}\n\n')
    provider.close_connection = True


def overloaded(provider: Provider, body: dict[str, Any]) -> None:
    provider.say(b'data: {"type": "error", "error": {"type": "overloaded_error"}}\n\n', "text/event-stream")


@pytest.mark.parametrize("answer", [cut_off, overloaded])
def test_an_answer_that_breaks_off_is_a_failed_request(
    answer: Any, relay: RelayProcess, provider: Any, run: RunDir
) -> None:
    """The same holds for one that ends in an error."""
    assert failed_requests(run) == []
    provider.answer = answer
    with suppress(httpx.RemoteProtocolError):
        post(relay, stream=True)
    assert seen(run, 1).failed == 1
    assert failed_requests(run) == [FailedRequest(502)]
    provider.answer = chat
    post(relay)
    assert (seen(run, 2).failed, failed_requests(run)) == (1, [])


START = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1000, "output_tokens": 1}}}
WORDS = [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "word " * 40}}] * 100
STOP = {"type": "message_stop"}


@pytest.mark.parametrize(
    ("end", "is_broken"), [([], True), ([{"type": "error", "error": {"type": "overloaded"}}], True), ([STOP], False)]
)
def test_a_stream_without_its_end_has_estimated_tokens(
    end: list[Any], is_broken: bool, relay: RelayProcess, provider: Any, run: RunDir
) -> None:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in [START, *WORDS, *end])
    provider.answer = lambda handler, body: handler.say(text.encode(), "text/event-stream")
    post(relay, "/api/v1/messages", stream=True)
    use = seen(run, 1)
    assert (use.failed, use.estimated, use.prompt_tokens) == (is_broken, is_broken, 1000)
    assert (use.completion_tokens > 1000) == is_broken


def test_a_record_that_could_not_be_written_is_written_later(
    relay: RelayProcess, provider: Any, run: RunDir, tmp_path: Path
) -> None:
    assert post(relay).status_code == 200
    log = request_log_path(run)
    log.rename(tmp_path / "log")
    log.mkdir()  # so it cannot be written for a while
    assert [post(relay).status_code for _ in range(3)] == [200, UNRECORDED, UNRECORDED]
    _exchange(tmp_path / "log", log)  # at once: a record that is just being written must not make a new file
    provider.answer = overloaded
    assert post(relay, stream=True).status_code == 200
    assert (seen(run, 5).refused, seen(run, 5).prompt_tokens > 1400) == (2, True)
    assert [each.status for each in failed_requests(run) or []] == [UNRECORDED, UNRECORDED, 502]


def test_counting_tokens_ends_no_row_of_failures(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    provider.answer = lambda handler, body: handler.say(b"{}", status=429)
    for _ in range(2):
        post(relay, "/api/v1/messages")
    post(relay, "/api/v1/messages/count_tokens")
    provider.answer = chat
    post(relay, "/api/v1/messages/count_tokens")
    assert seen(run, 4).failed == 3
    assert failed_requests(run) == [FailedRequest(429)] * 2


def failing(status: int) -> Callable[[Provider, dict[str, Any]], None]:
    return lambda handler, body: handler.say(b"{}", status=status, Location="https://elsewhere.test/")


def test_an_api_that_answered_is_not_to_blame_for_other_paths(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    provider.answer = failing(404)
    post(relay)
    assert ending("crashed", -9, failed=failed_requests(run)).responsible == "api"
    provider.answer = chat
    post(relay)
    provider.answer = failing(404)
    post(relay, "/api/v1/responses")
    assert failed_requests(run) == []
    for reason, times in (("crashed", 1), ("deadline", 2)):
        for _ in range(times):
            post(relay)
        assert ending(reason, -9, failed=failed_requests(run)).responsible == "unknown"


def test_a_failure_at_another_form_of_the_endpoint_counts(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    post(relay, "/api/v1/models/a-model:generateContent")
    provider.answer = failing(503)
    post(relay, "/api/v1/models/a-model:streamGenerateContent")
    assert ending("crashed", 1, failed=failed_requests(run)).responsible == "api"


def test_a_redirect_is_no_answer_and_costs_nothing(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    provider.answer = failing(308)
    answer = post(relay)
    assert (answer.status_code, len(provider.asked)) == (REDIRECTED, 1)
    assert "correct --base-url" in answer.json()["error"]["message"]
    assert (seen(run, 1).refused, seen(run, 1).tokens) == (1, 0)
    assert ending("crashed", 1, failed=failed_requests(run)).responsible == "machine"


def test_a_refusal_for_a_limit_is_a_failed_request(settings: Settings, provider: Any, new_run: Any) -> None:
    run = new_run(max_tokens=700)
    with RelayProcess(run, settings, provider.url, {}, {}) as relay:
        assert ask(relay, 2) == [200, 429]
    seen(run, 2)
    [failed] = failed_requests(run) or []
    assert ending("crashed", 1, failed=[failed]).responsible == "agent"


def test_an_agent_that_hangs_up_early_is_charged_all_the_same(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    """It hangs up before the answer says what it took."""

    def slowly(handler: Provider, body: dict[str, Any]) -> None:
        time.sleep(0.5)
        chat(handler, body)

    provider.answer = slowly
    body = b'{"model": "a-model"}'
    with socket.create_connection(("127.0.0.1", relay.port)) as client:
        key = f"X-Api-Key: {STAND_IN}\r\n"
        head = f"POST /api/v1/chat/completions HTTP/1.1\r\nHost: x\r\n{key}Content-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_for(lambda: provider.asked, 30)
    use = seen(run, 1)
    assert (use.tokens, use.estimated) == (750, 0)


def test_what_is_under_way_at_the_end_is_counted(settings: Settings, provider: Any, run: RunDir) -> None:
    """Without streaming, there is nothing to read before the answer is complete."""
    is_over = threading.Event()
    provider.answer = lambda handler, body: is_over.wait(60)
    with ThreadPoolExecutor() as clients:
        with RelayProcess(run, settings, provider.url, {}, {}) as relay:
            for path in ("/v1/chat/completions", "/v1/messages/count_tokens"):
                clients.submit(post, relay, path, messages=["y" * 8000])
            wait_for(lambda: len(provider.asked) == 2, 30)
        is_over.set()
    use = seen(run, 2)
    assert (use.failed, use.estimated, use.completion_tokens) == (0, 1, 0)  # the provider is not at fault
    assert use.models["a-model"].prompt_tokens == use.tokens >= 2000


def hang_up(provider: Provider, body: dict[str, Any]) -> None:
    provider.close_connection = True


def test_a_request_without_an_answer_is_counted_if_it_was_sent(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    provider.answer = hang_up
    assert post(relay, messages=["y" * 8000]).status_code == 502
    use = seen(run, 1)
    assert (use.failed + use.refused, use.estimated, use.tokens >= 2000) == (1, 1, True)


def test_a_quota_of_tokens_holds_for_what_was_seen(settings: Settings, provider: Any, new_run: Any) -> None:
    run = new_run(max_tokens=1000)
    with RelayProcess(run, settings, provider.url, {}, {}) as relay:
        answers = [post(relay, "/v1/chat/completions").status_code for _ in range(4)]
    assert answers == [200, 200, 429, 429]
    assert len(provider.asked) == 2
    assert seen(run, 4).refused == 2
    with RelayProcess(run, settings, provider.url, {}, {}) as again:
        assert post(again, "/v1/chat/completions").status_code == 429


@pytest.fixture
def priced(settings: Settings, provider: Any) -> Callable[[RunDir], RelayProcess]:
    """Returns a function that makes the relay of a run, with prices: an answer costs 0.0007 + 0.0001 dollars."""
    prices = {"a-model": TokenPrices(input=1, output=2)}
    return lambda run: RelayProcess(run, settings, provider.url, {}, {}, prices=prices)


def ask(relay: RelayProcess, times: int = 1, **body: Any) -> list[int]:
    return [post(relay, "/v1/chat/completions", **body).status_code for _ in range(times)]


def test_a_cost_limit_holds_in_one_request_and_after_a_restart(
    priced: Callable[[RunDir], RelayProcess], provider: Any, new_run: Any
) -> None:
    run = new_run(max_cost_usd=0.002)
    with priced(run) as relay:
        assert ask(relay, 4) == [200, 200, 200, 429]
    with priced(run) as again:
        assert ask(again) == [429]
    assert len(provider.asked) == 3
    use = seen(run, 5)
    assert use.cost_usd == pytest.approx(0.0024)
    assert use.models["a-model"].cost_usd == pytest.approx(0.0024)


def test_under_a_cost_limit_a_model_without_a_price_is_refused(
    priced: Callable[[RunDir], RelayProcess], provider: Any, new_run: Any
) -> None:
    with priced(new_run(max_cost_usd=1.0)) as relay:
        assert ask(relay, model="another") == [403]
        assert ask(relay, model=None) == [403]
    assert provider.asked == []


def test_without_a_limit_a_missing_price_makes_the_cost_unknown(
    priced: Callable[[RunDir], RelayProcess], run: RunDir
) -> None:
    with priced(run) as relay:
        assert ask(relay) + ask(relay, model="another") == [200, 200]
    use = seen(run, 2)
    assert use.cost_usd is None
    assert use.models["a-model"].cost_usd == pytest.approx(0.0008)


def test_a_full_record_closes_the_door_for_good(
    priced: Callable[[RunDir], RelayProcess], provider: Any, new_run: Any
) -> None:
    run = new_run(max_tokens=1000)
    with request_log_path(run).open("wb") as log:  # as after 19,400 refused requests
        log.truncate(MAX_BYTES - 10)
    for _ in range(2):
        with priced(run) as relay:
            assert ask(relay, 3) == [503] * 3
            assert "is full" in post(relay, "/v1/chat/completions").json()["error"]["message"]
    assert provider.asked == []
    limits = UsageLimits(run)
    assert limits.are_reached()
    assert "logs/llm.jsonl" in limits.reached


def test_what_was_asked_while_the_record_filled_is_in_it(
    priced: Callable[[RunDir], RelayProcess], provider: Any, run: RunDir
) -> None:
    def fill(handler: Provider, body: dict[str, Any]) -> None:
        with request_log_path(run).open("r+b") as log:
            log.truncate(MAX_BYTES - ROOM + 1)
            log.seek(-1, os.SEEK_END)
            log.write(b"\n")
        chat(handler, body)

    provider.answer = fill
    with priced(run) as relay:
        assert ask(relay, 2) == [200, 503]
    assert b'"prompt_tokens": 700' in request_log_path(run).read_bytes()[-ROOM:]


ELSEWHERE = [
    ("POST", "/api/v1/files"),
    ("POST", "/api/v1/batches"),
    ("POST", "/api/v1/fine_tuning/jobs"),
    ("POST", "/api/v1/../../chat/completions"),
    ("POST", "/api/v1/chat/completions/../../files"),
    ("POST", "/api/v1/chat/completions%2f..%2ffiles"),
    ("POST", "/api/v1/chat/./completions"),
    ("GET", "/api/v1/models/.."),
    ("POST", "//evil.example/chat/completions"),
    ("POST", "http://evil.example/api/v1/chat/completions/"),
    ("POST", "/v1/chat/completions"),
    ("DELETE", "/api/v1/models/a"),
    ("GET", "/api/v1/responses/resp_1"),
    ("GET", "/"),
]
MALFORMED = {
    "two lengths": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length twice": b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
    "huge headers": b"X: " + b"y" * 300_000 + b"\r\n\r\n",
    "a body that never comes": b"Content-Length: 40000000\r\n\r\n" + b"x" * 100,
    "no headers": b"",
}


def test_nothing_but_requests_for_an_answer_gets_through(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    for method, path in ELSEWHERE:
        with socket.create_connection(("127.0.0.1", relay.port), timeout=30) as client:
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
            client.sendall(head.encode())
            assert b" 403 " in client.recv(100), path
    assert provider.asked == []
    assert seen(run, len(ELSEWHERE)).refused == len(ELSEWHERE)


def test_a_malformed_request_reaches_nobody_and_stops_nobody(relay: RelayProcess, provider: Any) -> None:
    with ExitStack() as stack:
        for rest in MALFORMED.values():
            client = stack.enter_context(socket.create_connection(("127.0.0.1", relay.port), timeout=30))
            with suppress(OSError):
                client.sendall(b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + rest)
        assert post(relay).status_code == 200
    assert all(len(headers) < 20 for _, headers, _ in provider.asked)
    assert len(provider.asked) <= 2


def test_no_request_fills_the_log_of_the_relay(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    url = f"http://127.0.0.1:{relay.port}/api/v1/models"
    answer = httpx.get(f"{url}?alt=" + "!" * 30_000, headers={"api-key": STAND_IN}, timeout=60, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["type"]) == (414, "a2rl")
    assert httpx.get(f"{url}?other=" + "!" * 30_000, headers={"api-key": STAND_IN}, timeout=60).status_code == 200
    for _ in range(5):  # a body that goes on wrongly after the answer
        with socket.create_connection(("127.0.0.1", relay.port), timeout=30) as client:
            client.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
            assert b" 403 " in client.recv(100)
            client.sendall(b"zz\r\n\r\n")
            with suppress(OSError):
                while client.recv(1000):
                    pass
    assert (run.logs / "relay.log").read_text().count("Traceback") <= 1


def test_a_body_that_is_not_understood_is_not_passed_on(relay: RelayProcess, provider: Any) -> None:
    url = f"http://127.0.0.1:{relay.port}/api/v1/responses"
    for body in (b"[]", b"{", b'{"a": NaN}', b"[" * 100_000, b'{"background": true}'):
        assert httpx.post(url, content=body, timeout=60).status_code == 400
    assert httpx.post(url, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"}).status_code == 415
    assert provider.asked == []


def test_a_key_named_twice_is_judged_as_it_is_sent(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    body = b'{"model": "driver", "model": "other", "tools": [], "tools": [{"type": "web_search"}]}'
    url = f"http://127.0.0.1:{relay.port}/api/v1/responses"
    assert httpx.post(url, content=body, timeout=60).status_code == 403
    httpx.post(url, content=body.replace(b'[{"type": "web_search"}]', b"[]"), headers={"api-key": STAND_IN}, timeout=60)
    [(_, _, sent)] = provider.asked
    assert json.loads(sent)["model"] == "other"
    use = seen(run, 2)
    assert list(use.models) == ["other"]
    assert use.server_tools == {"web_search": 1}


def test_what_goes_beyond_text_is_refused_and_written_down(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    answer = post(relay, tools=[{"type": "mcp", "server_url": "https://example.org"}])
    assert answer.status_code == 403
    assert "mcp" in answer.json()["error"]["message"]
    assert provider.asked == []
    assert (seen(run, 1).refused, seen(run, 1).server_tools) == (1, {"mcp": 1})


def test_a_failure_of_the_relay_is_recorded_as_one(provider: Any, settings: Settings, run: RunDir) -> None:
    """Here the key has a character that no header can have."""
    keys = {"THE_KEY": "sk-abc\u2026def"}
    with RelayProcess(run, settings, provider.url + "/api/v1", keys, {"THE_KEY": STAND_IN}) as broken:
        answers = [post(broken) for _ in range(3)]
        assert seen(run, 3).refused == 3
    assert [each.status_code for each in answers] == [500] * 3
    assert answers[2].json()["error"]["message"] == "the relay failed: UnicodeEncodeError"
    assert (run.logs / "relay.log").read_text().count("Traceback") == 1


def test_a_request_that_cannot_be_sent_costs_nothing(provider: Any, settings: Settings, run: RunDir) -> None:
    keys = {"THE_KEY": "sk-abc\ndef"}
    with RelayProcess(run, settings, provider.url + "/api/v1", keys, {"THE_KEY": STAND_IN}) as broken:
        assert post(broken).status_code == 502
    assert (seen(run, 1).tokens, provider.asked) == (0, [])


def test_a_refusal_can_be_recorded_whatever_was_asked_for(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    asked = {"model": "m\ud800", "tools": [{"type": "t\ud800"}]}
    answer = httpx.post(
        f"http://127.0.0.1:{relay.port}/api/v1/messages", content=json.dumps(asked), timeout=60, trust_env=False
    )
    assert (answer.status_code, provider.asked) == (403, [])
    assert seen(run, 1).server_tools == {"t?": 1, "a model with a strange name": 1}
    [failed] = failed_requests(run) or []
    why = ending("crashed", 1, failed=[failed]).why
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=1.0, reason="crashed", exit_code=1, why=why))
    assert "t?" in run.ledger.events(AgentEnded)[-1].why


def test_a_header_of_any_bytes_is_passed_on_and_fills_no_log(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    url = f"http://127.0.0.1:{relay.port}/api/v1/messages"
    headers = {b"user-agent": b"\xe9", b"api-key": STAND_IN.encode()}
    assert httpx.post(url, json={}, headers=headers, timeout=60, trust_env=False).status_code == 200
    with socket.create_connection(("127.0.0.1", relay.port)) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert b"400" in connection.recv(1000)
    assert provider.asked[0][1]["user-agent"] == "\xe9"
    assert (run.logs / "relay.log").read_text() == ""


def test_what_the_rules_allow_is_passed_on_and_written_down(
    settings: Settings, provider: Any, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = rules().model_copy(update={"provider": Listed(allowed=("mcp",))})
    monkeypatch.setattr("a2rl.llm.relay.process.rules", lambda: allowed)
    with RelayProcess(run, settings, provider.url, {}, {}) as relay:
        assert post(relay, "/v1/chat/completions", tools=[{"type": "mcp"}]).status_code == 200
    assert seen(run, 1).server_tools == {"mcp": 1}


def test_a_stand_in_becomes_the_key_only_where_keys_are_read(relay: RelayProcess, provider: Any) -> None:
    headers = {"X-Title": STAND_IN, "X-Goog-Api-Key": STAND_IN}
    url = f"http://127.0.0.1:{relay.port}/api/v1/chat/completions?alt={STAND_IN}&other={STAND_IN}&key={STAND_IN}"
    httpx.post(url, json={"model": STAND_IN}, headers=headers, timeout=60, trust_env=False)
    [(path, sent, body)] = provider.asked
    assert path == f"/api/v1/chat/completions?alt={STAND_IN}&key={KEY}"
    assert (sent["x-title"], sent["x-goog-api-key"]) == (STAND_IN, KEY)
    assert KEY.encode() not in body


def test_a_request_with_another_key_is_the_agents_fault(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    url = f"http://127.0.0.1:{relay.port}/api/v1/chat/completions"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": f"{STAND_IN}, wrong"}):
        assert httpx.post(url, json={"model": "m"}, headers=headers, timeout=60, trust_env=False).status_code == 401
    assert (provider.asked, seen(run, 3).refused) == ([], 3)
    assert ending("crashed", 1, failed=failed_requests(run)).responsible == "agent"


def test_no_key_of_somebody_else_passes_beside_a_stand_in(relay: RelayProcess, provider: Any) -> None:
    url = f"http://127.0.0.1:{relay.port}/api/v1/messages?key=foreign&key={STAND_IN}%20foreign"
    headers = [("X-Api-Key", STAND_IN), ("X-Api-Key", "foreign"), ("Authorization", "Bearer foreign")]
    httpx.post(url, json={"model": "m"}, headers=headers, timeout=60, trust_env=False)
    [(path, sent, _)] = provider.asked
    assert (path, sent["x-api-key"]) == ("/api/v1/messages", KEY)
    assert "foreign" not in str(sent)


def test_a_server_without_keys_is_sent_the_placeholder_only(settings: Settings, provider: Any, run: RunDir) -> None:
    with RelayProcess(run, settings, provider.url, {}, {}) as relay:
        for key in ("foreign", PLACEHOLDER_KEY):
            headers = {"Authorization": f"Bearer {key}"}
            url = f"http://127.0.0.1:{relay.port}/v1/messages"
            assert httpx.post(url, json={}, headers=headers, timeout=60, trust_env=False).status_code == 200
    assert [sent.get("authorization") for _, sent, _ in provider.asked] == [None, f"Bearer {PLACEHOLDER_KEY}"]


def test_no_answer_contains_the_key(relay: RelayProcess, provider: Any) -> None:
    def quote(handler: Provider, body: dict[str, Any]) -> None:
        handler.say(json.dumps({"text": KEY, "signature": "sk-" + "a" * 40}).encode(), Key=KEY)

    provider.answer = quote
    answer = post(relay)
    assert KEY not in answer.text
    assert KEY not in str(answer.headers)
    assert "sk-" + "a" * 40 in answer.text  # what only looks like a key may be a part of a signature


def test_a_providers_error_reaches_the_agent_without_the_key(relay: RelayProcess, provider: Any, run: RunDir) -> None:
    provider.answer = lambda handler, body: handler.say(f'{{"error": "no such key: {KEY}"}}'.encode(), status=401)
    answer = post(relay)
    assert answer.status_code == 401
    assert KEY not in answer.text
    assert (seen(run, 1).failed, seen(run, 1).tokens) == (1, 0)


def test_a_relay_that_is_killed_is_replaced_and_goes_on_counting(
    relay: RelayProcess, provider: Any, run: RunDir
) -> None:
    assert post(relay).status_code == 200
    before = relay.pid
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: relay.pid != before, 30)
    assert post(relay).status_code == 200
    assert seen(run, 2).tokens == 1500


def test_it_has_the_key_in_no_environment(relay: RelayProcess) -> None:
    assert KEY.encode() not in Path(f"/proc/{relay.pid}/environ").read_bytes()
    assert KEY.encode() not in Path(f"/proc/{relay.pid}/cmdline").read_bytes()


def test_a_provider_that_is_down_is_a_bad_gateway(settings: Settings, run: RunDir) -> None:
    with RelayProcess(run, settings, "http://127.0.0.1:9", {}, {}) as relay:
        assert post(relay, "/v1/messages").status_code == 502
    assert (seen(run, 1).tokens, seen(run, 1).estimated) == (0, 0)


def test_the_record_is_limited_whatever_the_agent_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "llm.jsonl"
    lines = [Request(t=0, path="/v1/messages", asked=f"model-{n}", status=200, prompt_tokens=1) for n in range(100)]
    path.write_text("not json\n" + "".join(line.model_dump_json() + "\n" for line in lines) + '{"t": 1, "path')
    use = RequestLogReader(path).read()
    assert (use.requests, use.tokens) == (100, 100)
    assert len(use.models) == 21
    assert use.models[OTHERS].requests == 80


def test_many_names_hide_no_model_that_was_used(tmp_path: Path) -> None:
    def line(asked: str, tokens: int, **more: Any) -> str:
        said = {"status": 200, "prompt_tokens": tokens, "cost_usd": tokens / 8, **more}
        return Request(t=0, path="/v1/messages", asked=asked, **said).model_dump_json() + "\n"

    lines = [line(f"unknown-{n}", 0, status=404) for n in range(50)]
    lines += [line(f"refused-{n}", 0, status=403, refused="no", server_tools=[f"tool-{n}"]) for n in range(50)]
    lines += [line("driver", 900), line("teacher", 40, answered="another"), line("driver", 100)]
    lines += [line(f"cheap-{n}", n % 3, answered=f"dear-{n}", server_tools=["web_search"]) for n in range(60)]
    path = tmp_path / "llm.jsonl"
    path.write_text("".join(lines))
    use = RequestLogReader(path).read()
    assert (len(use.models), use.tokens, use.cost_usd) == (21, 1100, 1100 / 8)
    assert (use.models["driver"].requests, use.models["teacher"].tokens) == (2, 40)
    assert not any(name.startswith(("unknown", "refused")) for name in use.models)
    assert (len(use.answered), use.answered["teacher"]) == (20, "another")
    assert (use.server_tools["web_search"], use.server_tools[OTHERS], len(use.server_tools)) == (60, 30, 22)


@pytest.mark.parametrize("other", ["tiny", OTHERS])
def test_models_used_in_turn_hide_no_model_of_many_tokens(other: str) -> None:
    reader = RequestLogReader(Path("llm.jsonl"))
    used = [(f"decoy-{n}", 2000) for n in range(19)] + [("teacher", 1900), (other, 10), ("small", 10)] * 100
    for asked, tokens in used:
        reader.add(Request(t=0, path="/v1/messages", asked=asked, status=200, prompt_tokens=tokens, cost_usd=0.0))
    use = reader.totals()
    assert next(iter(use.models)) == "teacher"
    assert (use.models["teacher"].requests, use.models["teacher"].tokens) == (100, 190_000)
    assert (len(use.models), use.models[OTHERS].tokens) == (21, 2000)
    assert use.tokens == 19 * 2000 + 192_000


def test_a_run_without_a_relay_has_no_record(run: RunDir) -> None:
    assert failed_requests(run) is None
    assert read_llm_use(run) is None
