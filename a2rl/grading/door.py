"""What an agent may do to the grading service over HTTP: so many connections, so fast, so large, so often.

An agent that floods the service harms its own run at most: connections beyond the limit are closed at once, slow ones
after seconds, and requests are answered at a steady pace. The pipeline itself does not come in by this door.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import h11
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from a2rl.event_log import EventLog
from a2rl.grading.refusals import Allowance, bounded

MAX_CONNECTIONS = 128
"""Of a run, at a time. A request that waits for its grade holds one."""
MAX_HEAD_BYTES = 16 << 10
"""Of a request's first line and headers."""
MAX_BODY_BYTES = 64 << 10
SLOWEST_S = 10.0
"""In which a request must have arrived, its head and then its body."""
MAX_PATH = 200
"""Characters of a path that are written down."""
BURST, REQUESTS_EVERY_S = 200, 0.05
"""Requests: so many at once, and then one in so many seconds."""
LONGEST_WAIT_S = 10.0


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An answer that says what is wrong."""
    # "error" is the reference's key, "detail" FastAPI's; agents look for either.
    return JSONResponse({"error": detail, "detail": detail}, status_code=status, headers=headers)


class Connection(H11Protocol):
    """uvicorn's protocol, with limits on how many connections there are and how long one may say nothing."""

    _looked: Any = None
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._watch = self.loop.call_later(SLOWEST_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except (h11.ProtocolError, ValueError, RuntimeError):  # what it sends is not even bad HTTP
            self.transport.abort()

    def _look(self) -> None:
        """Closes the connection if no request has come since the last look and none is being answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self.cycle is self._looked:
            self.transport.abort()
            return
        self._looked = self.cycle
        self._watch = self.loop.call_later(SLOWEST_S, self._look)


class RequestRate:
    """Answers more requests than any honest agent makes slowly, one by one, and 429 to what is still too much."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._allowance = Allowance(BURST, REQUESTS_EVERY_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            wait_s = self._allowance.reserve(LONGEST_WAIT_S)
            if wait_s is None:
                too_many = problem(429, "too many requests; wait a while", {"Retry-After": "5", "Connection": "close"})
                await too_many(scope, receive, send)
                return
            if wait_s:
                await asyncio.sleep(wait_s)
        await self.app(scope, receive, send)


class CallLog:
    """Writes down every call: when it began, what was asked, how it was answered and how long that took."""

    def __init__(self, app: ASGIApp, log: EventLog) -> None:
        self.app = app
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 0, time.monotonic()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            seconds, path = round(time.monotonic() - started, 3), bounded(scope["path"], MAX_PATH)
            with contextlib.suppress(OSError):  # a full disk is no reason not to answer
                self.log.write(method=scope["method"][:MAX_PATH], path=path, status=status, seconds=seconds)


class SizeLimit:
    """Refuses requests that no honest agent sends, before they fill the memory or keep somebody waiting.

    The body is read here and handed on whole: an error raised from within FastAPI's own reading would become its 400.
    """

    def __init__(self, app: ASGIApp, refused: Callable[[Scope, str], Any], usage: str) -> None:
        """Args: refused: told of every request that is refused, and why."""
        self.app, self._refused, self._usage = app, refused, usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _head_bytes(scope) > MAX_HEAD_BYTES:  # the protocol's own limit is for what has not arrived whole
            await self._refuse(431, "the headers are too large", scope, receive, send)
            return
        try:
            async with asyncio.timeout(SLOWEST_S):
                body = await _body(receive)
        except TimeoutError:
            await self._refuse(408, f"the request did not arrive within {SLOWEST_S:.0f} s", scope, receive, send)
            return
        if body is None:
            return  # the client has gone
        if len(body) > MAX_BODY_BYTES:
            await self._refuse(413, f"the request is too large; {self._usage}", scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, status: int, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(self._refused, scope, detail)
        await problem(status, detail, {"Connection": "close"})(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(scope.get("raw_path") or b"") + len(scope["query_string"]) + headers


async def _body(receive: Receive) -> bytearray | None:
    """The body, or as much of it as shows that it is too large; None if the client has gone."""
    body, more = bytearray(), True
    while more and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body
