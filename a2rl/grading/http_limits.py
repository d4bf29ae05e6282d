"""Limits of the grading service's HTTP side: on the number of connections, and on the duration, size and rate of
requests. The server passes on nothing but HTTP requests.

An agent that floods the service harms only its own run. Connections beyond the limit are closed at once, slow ones are
closed after seconds, and requests are answered at a limited rate. The pipeline itself does not use HTTP.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import h11
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from a2rl.core.event_log import EventLog
from a2rl.grading.throttling import TokenBucket, bounded

MAX_CONNECTIONS = 128
"""The number of simultaneous connections of a run. A request that waits for its grade keeps one open."""
MAX_HEAD_BYTES = 16 << 10
"""The size of a request's first line and headers together."""
MAX_BODY_BYTES = 64 << 10
ARRIVAL_TIMEOUT_S = 10.0
"""The head of a request must arrive within this time. Its body has the same time after that."""
MAX_PATH_CHARS = 200
"""The number of characters of a path that are logged."""
BURST, REQUEST_INTERVAL_S = 200, 0.05
"""This many requests are answered at once, and then one per interval."""
MAX_RATE_DELAY_S = 10.0
"""A request that would be delayed for longer is rejected."""


def error_response(
    status: int,
    detail: str,
    headers: dict[str, str] | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> JSONResponse:
    """Returns an answer that says what is wrong; `more` are further keys."""
    # The reference uses the key "error", and FastAPI uses "detail"; agents read one or the other.
    return JSONResponse({"error": detail, "detail": detail, **more}, status_code=status, headers=headers)


class Connection(H11Protocol):
    """uvicorn's protocol, with limits on the number of connections and on their silence."""

    _last_cycle: Any = None
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts a connection, or closes it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._watch = self.loop.call_later(ARRIVAL_TIMEOUT_S, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the checks of a closed connection."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses new data; a connection that does not send HTTP is closed."""
        try:
            super().data_received(data)
        except (h11.ProtocolError, ValueError, RuntimeError):
            self.transport.abort()

    def _close_if_idle(self) -> None:
        """Closes the connection if no request has arrived since the last check and none is being answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self.cycle is self._last_cycle:
            self.transport.abort()
            return
        self._last_cycle = self.cycle
        self._watch = self.loop.call_later(ARRIVAL_TIMEOUT_S, self._close_if_idle)


class RequestRate:
    """Delays requests beyond a rate that no honest agent reaches, and rejects the excess with status 429."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._bucket = TokenBucket(BURST, REQUEST_INTERVAL_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request (ASGI)."""
        wait_s = self._bucket.reserve(MAX_RATE_DELAY_S)
        if wait_s is None:
            too_many = error_response(
                429, "too many requests; wait a while", {"Retry-After": "5", "Connection": "close"}
            )
            await too_many(scope, receive, send)
            return
        if wait_s:
            await asyncio.sleep(wait_s)
        await self.app(scope, receive, send)


class CallLog:
    """Logs every call: its time, method and path, the status of the answer and the duration."""

    def __init__(self, app: ASGIApp, log: EventLog) -> None:
        self.app = app
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request (ASGI)."""
        status, started = 0, time.monotonic()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            seconds, path = round(time.monotonic() - started, 3), bounded(scope["path"], MAX_PATH_CHARS)
            with contextlib.suppress(OSError):  # on a full disk, requests are still answered
                self.log.write(method=scope["method"][:MAX_PATH_CHARS], path=path, status=status, seconds=seconds)


class SizeLimit:
    """Rejects requests that are too large or too slow, before they fill the memory or block others.

    The body is read here and passed on whole, because FastAPI turns any error during its own reading into status 400.
    """

    def __init__(self, app: ASGIApp, refused: Callable[[Scope, str], Any], usage: str) -> None:
        """Wraps an application.

        Args:
            refused: Called with every rejected request and the reason.
            usage: How to send a correct request.
        """
        self.app, self._refused, self._usage = app, refused, usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request (ASGI)."""
        if _head_bytes(scope) > MAX_HEAD_BYTES:  # the protocol's own limit applies only to incomplete heads
            await self._refuse(431, "the headers are too large", scope, receive, send)
            return
        try:
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                body = await _body(receive)
        except TimeoutError:
            reason = f"the request did not arrive within {ARRIVAL_TIMEOUT_S:.0f} s"
            await self._refuse(408, reason, scope, receive, send)
            return
        if body is None:
            return  # the client has disconnected
        if len(body) > MAX_BODY_BYTES:
            await self._refuse(413, f"the request is too large; {self._usage}", scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)

    async def _refuse(self, status: int, detail: str, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(self._refused, scope, detail)
        await error_response(status, detail, {"Connection": "close"})(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(scope.get("raw_path") or b"") + len(scope["query_string"]) + headers


async def _body(receive: Receive) -> bytearray | None:
    """Reads the body, or enough of it to see that it is too large; None if the client has disconnected."""
    body, more = bytearray(), True
    while more and len(body) <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body
