"""The relay's ASGI application: checks a request, forwards it with the key, and reads the answer as it passes.

A forwarded request is a new one, built from the parts that were understood: a known path, the body as parsed JSON, and
the headers except those of the connection. So nothing can bypass the checks, and requests are sent only to the
provider.

The process is `python -P -m a2rl.llm.relay.app FD`, on a socket that its parent listens on. The first line on stdin is
the message of a2rl/llm/keys.py. The second line is a `RelaySettings` in JSON. When stdin closes, the relay ends after
the current answers, or after a few seconds.
"""

import asyncio
import json
import posixpath
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
from starlette.types import Message, Receive, Scope, Send

from a2rl.agent_systems.transcripts.ending import REDIRECTED, UNRECORDED
from a2rl.core.event_log import EventLog
from a2rl.core.secrets import register_secrets, scrub_bytes, scrubbing_stream
from a2rl.core.serving import serve_for_parent
from a2rl.core.settings import Settings
from a2rl.core.token_use import TokenUse
from a2rl.llm.keys import PLACEHOLDER_KEY, receive_keys
from a2rl.llm.relay.messages import AnswerReader, ParsedRequest, parse_request, tier_of
from a2rl.llm.relay.prices import PriceTable
from a2rl.llm.relay.process import RelaySettings
from a2rl.llm.relay.request_log import COUNTING, FULL, Request, RequestLogReader, limit_reached

ENDPOINTS = re.compile(
    r"(?:/v1|/v1beta|/v1alpha)?(?:/messages(?:/count_tokens)?|/chat/completions|/responses(?:/compact)?"
    r"|/models/(?P<model>[\w.:@-]{1,100}):(?:generateContent|streamGenerateContent|countTokens))"
)
LISTINGS = re.compile(r"(?:/v1|/v1beta|/v1alpha)?/models(?:/[\w.:@-]{1,100})?")
HOP_BY_HOP = re.compile(
    r"connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|host|content-length|content-encoding"
    r"|accept-encoding|expect|cookie|set-cookie|forwarded|x-forwarded-.*|via|alt-svc|location"
)
KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
"""The only headers in which a stand-in is replaced by its key; in the query, that is `key`."""
BEARER = re.compile(r"\Abearer +", re.IGNORECASE)
HEADERS = re.compile(
    r"accept|content-type|user-agent|anthropic-(?:version|beta|dangerous-direct-browser-access)|openai-beta"
    r"|x-stainless-.*|x-app|x-goog-api-client|x-client-.*|originator|version|session[_-]id|conversation[_-]id"
    r"|x-codex-.*|x-claude-code-.*|x-opencode-.*|http-referer|x-title"
)
"""The other headers that are passed on."""
QUERY = re.compile("alt|beta|api-version|client_version|limit|after_id|before_id|pageSize|pageToken")
MAX_BODY = 32 << 20
MAX_PATH, MAX_QUERY = 200, 4096
MAX_CONCURRENT = 4
"""The number of concurrent requests; others wait. The quota may be exceeded by the tokens that these requests use."""
MAX_WAITING = 64
MAX_UNWRITTEN = 1000
"""The number of requests that are kept while the record cannot be written."""
MAX_REQUESTS = 100_000
"""The number of requests in one run. It is limited to keep the record small."""
RECEIVE_S, SEND_S, WAIT_S, ANSWER_S = 60.0, 60.0, 1800.0, 7200.0
TIMEOUT = httpx.Timeout(30.0, read=1800.0, write=120.0)
"""Timeouts for the provider. They are long because a reasoning model may send nothing for a long time."""
BYTES_PER_TOKEN, BYTES_PER_STREAMED_TOKEN = 4, 16
"""Used to estimate the tokens of answers that do not report them."""
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.LocalProtocolError)
"""The errors of requests that have not reached the provider."""
NOTHING_ASKED = ParsedRequest("", ())


class RequestRejectedError(Exception):
    """A request that is not forwarded."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class Exchange:
    """A request and its answer, as they are recorded."""

    path: str
    started: float = field(default_factory=time.monotonic)
    asked: ParsedRequest = NOTHING_ASKED
    tier: Mapping[str, str] = field(default_factory=dict)
    """The tier of the service that was asked for."""
    status: int = 0
    refused: str = ""
    sent: int = 0
    """The number of bytes that the provider was sent, if they ask for an answer of the LLM."""
    reader: AnswerReader | None = None
    is_whole: bool = False
    """Whether all of the answer has arrived that the provider sent."""
    is_written: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the answer has come to its end, without an error."""
        return self.is_whole and self.reader is not None and self.reader.is_ended and not self.reader.has_error

    def line(self, prices: PriceTable) -> dict[str, Any]:
        """Returns the line for the log."""
        used, estimated = self._used()
        answered = self.reader.model if self.reader else ""
        is_begun = self.reader is not None or self.sent > 0
        broken = is_begun and self.status < 400 and not self.is_complete
        tier = {**self.tier, **(self.reader.tier if self.reader else {})}
        return {
            "path": self.path[:MAX_PATH], "asked": self.asked.model,
            "answered": answered, "status": self.status, "refused": self.refused, **used._asdict(),
            "estimated": estimated, "broken": broken,
            "cost_usd": prices.cost_usd(used, [answered, self.asked.model], tier) if used.total else 0.0,
            "server_tools": self.asked.server_tools,
            "seconds": round(time.monotonic() - self.started, 3),
        }  # fmt: skip

    def _used(self) -> tuple[TokenUse, bool]:
        """Returns the tokens that were used, and whether they were estimated."""
        if not self.sent or (self.reader is not None and self.status >= 400):
            return TokenUse(), False
        if self.reader is None:  # it was under way when the relay ended, or had no answer: it may cost all the same
            return TokenUse(prompt_tokens=self.sent // BYTES_PER_TOKEN), True
        seen = self.reader.used or TokenUse()
        if self.reader.used is not None and self.is_complete:
            return seen, False
        written = self.reader.bytes // (BYTES_PER_STREAMED_TOKEN if self.reader.is_stream else BYTES_PER_TOKEN)
        prompt = seen.prompt_tokens or self.sent // BYTES_PER_TOKEN
        return seen._replace(prompt_tokens=prompt, completion_tokens=max(seen.completion_tokens, written)), True


class Relay:
    """Forwards requests to one provider.

    Args:
        settings: The provider, and the limits.
        keys: The real keys, by the stand-in that the agent has for each.
    """

    def __init__(self, settings: RelaySettings, keys: Mapping[str, str]) -> None:
        parts = urlsplit(settings.base_url)
        self._origin, self._base = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        self._settings, self._needs_key = settings, bool(keys)
        self._keys = keys or {PLACEHOLDER_KEY: PLACEHOLDER_KEY}
        self._log, self._totals = EventLog(settings.log), RequestLogReader(settings.log)
        self._totals.read()
        self._prices = PriceTable(settings.base_url, settings.prices)
        self._http = httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_connections=MAX_CONCURRENT))
        self._unwritten: list[dict[str, Any]] = []
        """Lines that the log does not have yet."""
        self._slots, self._waiting = asyncio.Semaphore(MAX_CONCURRENT), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope["path"])
        try:
            await self._relay(scope, receive, send, exchange)
        except RequestRejectedError as rejection:
            await _refuse(send, exchange, rejection)
        except Exception as error:
            await _refuse(send, exchange, RequestRejectedError(500, f"the relay failed: {type(error).__name__}"))
            raise
        finally:
            self._write_down(exchange)

    def _write_down(self, exchange: Exchange) -> None:
        if exchange.is_written:
            return
        exchange.is_written = True
        if exchange.reader is not None:
            exchange.reader.close()
        line = exchange.line(self._prices)
        self._totals.add(Request.model_validate({"t": time.time(), **line}))
        if exchange.refused and self._log.is_full:
            return  # what room is left is for requests that were forwarded
        if not exchange.refused or len(self._unwritten) < MAX_UNWRITTEN:
            self._unwritten.append({"t": round(time.time(), 3), **line})
        self._write()

    def _write(self) -> None:
        """Writes what is not written yet, as far as that is possible: the disk may be full."""
        with suppress(OSError):
            while self._unwritten:
                self._log.write(**self._unwritten[0])
                del self._unwritten[0]

    async def _relay(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        path = self._path(scope)
        if self._waiting >= MAX_WAITING:
            raise RequestRejectedError(429, f"more than {MAX_WAITING} requests are waiting")
        self._waiting += 1
        try:
            await asyncio.wait_for(self._slots.acquire(), WAIT_S)
        except TimeoutError as error:
            raise RequestRejectedError(429, "the request waited too long for earlier requests") from error
        finally:
            self._waiting -= 1
        try:
            body = await _body(receive) if scope["method"] == "POST" else b""
            request = self._request(scope, path, body, exchange)
            self._check_limits()
            await asyncio.wait_for(self._pass_on(request, send, exchange), ANSWER_S)
        except TimeoutError as error:
            raise RequestRejectedError(504, "the request, or its answer, took too long") from error
        finally:
            self._slots.release()

    def _path(self, scope: Scope) -> str:
        """Returns the path to forward to."""
        path: str = scope["path"]
        below = path.removeprefix(self._base)
        is_plain = posixpath.normpath(path) == path  # a provider may resolve what is not
        known = {"POST": ENDPOINTS, "GET": LISTINGS, "HEAD": LISTINGS}.get(scope["method"])
        if not is_plain or not path.startswith(self._base) or known is None or not known.fullmatch(below):
            raise RequestRejectedError(403, "only requests for an answer of the LLM are forwarded")
        return self._base + below

    def _check_limits(self) -> None:
        self._write()
        if self._unwritten:  # requests that cannot be counted are not forwarded
            raise RequestRejectedError(UNRECORDED, "the record of requests (logs/llm.jsonl) cannot be written")
        if self._log.is_full:
            raise RequestRejectedError(503, FULL)
        totals = self._totals.totals()
        if reached := limit_reached(totals, self._settings.max_tokens, self._settings.max_cost_usd):
            raise RequestRejectedError(429, reached)
        if totals.requests >= MAX_REQUESTS:
            raise RequestRejectedError(429, f"the run has made {MAX_REQUESTS:,} requests")

    def _request(self, scope: Scope, path: str, body: bytes, exchange: Exchange) -> httpx.Request:
        """Builds the request to the provider."""
        sent = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = list(self._passed_on(sent, KEY_HEADERS, HEADERS))
        if any(name == b"content-encoding" for name, _ in scope["headers"]):
            raise RequestRejectedError(415, "compressed requests are not supported")
        asked = parse_qsl(scope["query_string"].decode("latin-1"))
        passed = list(self._passed_on(asked, ("key",), QUERY))
        query = urlencode(passed)
        if len(query) > MAX_QUERY:  # httpx makes no URL of what is much longer
            raise RequestRejectedError(414, f"its query is longer than {MAX_QUERY:,} characters")
        url = httpx.URL(self._origin, path=path, query=query.encode() or None)
        content = self._content(path, body, exchange) if scope["method"] == "POST" else None
        has_key = any(name in KEY_HEADERS for name, _ in headers) or any(name == "key" for name, _ in passed)
        if self._needs_key and not has_key:
            raise RequestRejectedError(401, "it does not have the key that the agent was given")
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return self._http.build_request(
            scope["method"], url, headers=[*encoded, (b"accept-encoding", b"identity")], content=content
        )

    def _content(self, path: str, body: bytes, exchange: Exchange) -> bytes:
        try:
            said = json.loads(body)
            if not isinstance(said, dict):
                raise ValueError
            if path.endswith("/chat/completions") and said.get("stream"):
                options = said.get("stream_options")
                said["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
            content = json.dumps(said, allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, RecursionError) as error:
            raise RequestRejectedError(400, "the body must be a JSON object") from error
        found = ENDPOINTS.fullmatch(path.removeprefix(self._base))
        asked = {**said, "model": found["model"]} if found and found["model"] else said
        exchange.asked = parse_request(path.removeprefix(self._base), asked)
        exchange.tier = tier_of(said)
        if unwanted := sorted(set(exchange.asked.server_tools) - set(self._settings.allowed)):
            raise RequestRejectedError(
                403, f"the provider is only asked for text, not for {', '.join(unwanted)}; leave that out"
            )
        if self._settings.max_cost_usd is not None and not self._prices.knows(exchange.asked.model):
            raise RequestRejectedError(
                403, f"the price of {exchange.asked.model} is unknown, so the limit on the cost could not hold"
            )
        if said.get("background"):
            raise RequestRejectedError(
                400, "background answers cannot be counted: send the request without `background`"
            )
        return content

    def _passed_on(
        self, given: Iterable[tuple[str, str]], keys: tuple[str, ...], others: re.Pattern[str]
    ) -> Iterator[tuple[str, str]]:
        """Yields what is passed on of headers or of a query, with each key in place of its stand-in.

        A key that is none of ours is left out: with it, the provider might answer at the expense of somebody else.
        """
        for name, value in given:
            if name in keys:
                stand_in = BEARER.sub("", value)
                if key := self._keys.get(stand_in):
                    yield name, value.removesuffix(stand_in) + key
            elif others.fullmatch(name):
                yield name, value

    async def _pass_on(self, request: httpx.Request, send: Send, exchange: Exchange) -> None:
        """Passes on the answer as it arrives. Even if the agent has ended, it is read to its end, so that all its
        tokens are counted: the provider charges for them."""
        exchange.sent = 0 if COUNTING.fullmatch(exchange.path) else len(request.content)
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            if isinstance(error, UNSENT):
                exchange.sent = 0
            raise RequestRejectedError(502, f"the provider cannot be reached: {type(error).__name__}") from error
        if response.is_redirect:  # nobody follows it: the keys are for this address
            await response.aclose()
            exchange.sent = 0
            raise RequestRejectedError(REDIRECTED, "the provider redirects to another address: correct --base-url")
        exchange.status = response.status_code
        exchange.reader = reader = AnswerReader("event-stream" in response.headers.get("content-type", ""))
        client = Client(send)
        try:
            await client.start(response)
            # Some providers quote the key. What only looks like one may be a part of a signature, except in errors.
            clean = scrubbing_stream(by_form=response.is_error)
            async for piece in response.aiter_bytes():
                reader.feed(piece)
                await client.piece(clean.feed(piece))
            exchange.is_whole = True
            self._write_down(exchange)  # before the agent has the whole answer
            await client.piece(clean.close())
            await client.end()
        except httpx.HTTPError:
            return  # the connection broke: the agent gets an incomplete answer, and may retry
        finally:
            await response.aclose()


class Client:
    """The client of a request. If it stops reading, nothing more is sent to it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_gone = False

    async def start(self, response: httpx.Response) -> None:
        """Sends status and headers."""
        headers = [
            (name, scrub_bytes(value))
            for name, value in response.headers.raw
            if not HOP_BY_HOP.fullmatch(name.decode("latin-1").lower())
        ]
        await self._send_message({"type": "http.response.start", "status": response.status_code, "headers": headers})

    async def piece(self, piece: bytes) -> None:
        """Sends a piece of the body."""
        await self._send_message({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """Ends the body."""
        await self._send_message({"type": "http.response.body", "body": b""})

    async def _send_message(self, message: Message) -> None:
        if self._is_gone:
            return
        try:
            await asyncio.wait_for(self._send(message), SEND_S)
        except (TimeoutError, OSError):
            self._is_gone = True


async def _body(receive: Receive) -> bytes:
    body, more = bytearray(), True
    async with asyncio.timeout(RECEIVE_S):
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise RequestRejectedError(499, "the request was aborted")
            body += message.get("body", b"")
            if len(body) > MAX_BODY:
                raise RequestRejectedError(413, f"the request is larger than {MAX_BODY >> 20} MiB")
            more = message.get("more_body", False)
    return bytes(body)


async def _refuse(send: Send, exchange: Exchange, rejection: RequestRejectedError) -> None:
    """Answers a request that is not forwarded. If its answer has already begun, that ends here."""
    if exchange.reader is not None:
        return
    status = exchange.status = rejection.status
    exchange.refused = str(rejection)
    problem = {"type": "a2rl", "code": status, "message": str(rejection)}
    body = json.dumps({"type": "error", "error": problem}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 429:
        headers.append((b"x-should-retry", b"false"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


MAX_CONNECTIONS = 128


def main() -> None:
    """Runs the relay until standard input closes."""
    receive_keys(sys.stdin)
    told = RelaySettings.model_validate_json(sys.stdin.readline())
    environ = Settings.load().environ
    register_secrets({name: environ[name] for name in told.keys})
    relay = Relay(told, {stand_in: environ[name] for name, stand_in in told.keys.items()})
    serve_for_parent(
        relay,
        int(sys.argv[1]),
        lifespan="off",
        limit_concurrency=MAX_CONNECTIONS,
        http="h11",
        ws="none",
        log_level="error",  # a warning for every malformed request would fill the disk
    )


if __name__ == "__main__":
    main()
