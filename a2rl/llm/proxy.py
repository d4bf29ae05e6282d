"""An HTTP proxy on loopback that connects LLM agents to listed hosts only, and logs the connections.

It does not inspect encrypted traffic: a CONNECT tunnel is allowed or refused by host and port alone. Plain HTTP (a
model server in the local network) is forwarded unchanged. Agents find the proxy in HTTPS_PROXY and HTTP_PROXY.

with Proxy(["api.openai.com", "10.0.0.5:8000"], run.logs / "proxy.jsonl") as proxy:
    proxy.url           # http://127.0.0.1:41571

We use no library: proxy.py and mitmproxy are large dependencies for two types of requests and an allow-list.
"""

import asyncio
import threading
import time
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from a2rl.core.event_log import EventLog
from a2rl.core.urls import HTTPS_PORT, endpoint, proxy_for

HTTP_PORT = 80
HEAD_TIMEOUT_S = 30.0
MAX_HEAD_BYTES = 64 << 10
BLOCK = 64 << 10
CONNECT_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 256
MAX_HOST = 255
"""The number of characters of a host that are logged."""


class Target(NamedTuple):
    """The destination of a request, and the first bytes to send there."""

    host: str
    port: int
    opening: bytes
    """Empty for a tunnel."""


@dataclass
class Count:
    """The number of bytes sent in one direction."""

    bytes: int = 0


class Proxy:
    """A running proxy; leaving the context closes its connections."""

    def __init__(self, hosts: Iterable[str], log: Path) -> None:
        """Makes a proxy, which starts with the context.

        Args:
            hosts: The allowed destinations, as `host` (port 443) or `host:port`; subdomains are not included.
            log: The file for a line before each connection, and one after it. While a line cannot be written there, no
                connections are made.
        """
        self._allowed = {endpoint(host) for host in hosts}
        self._log = EventLog(log)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None] | None] = set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Its URL, for HTTPS_PROXY and HTTP_PROXY."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Proxy":
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        self._open.add(task)
        try:
            await self._serve_one(reader, writer)
        finally:
            self._open.discard(task)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_TIMEOUT_S)
                target = parse_head(head)
            except (ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await self._answer(writer, "400 Bad Request", "this is a proxy")
                return
            await self._pass_on(target, reader, writer)
        writer.close()

    async def _pass_on(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = {"host": target.host[:MAX_HOST], "port": target.port}
        allowed = (target.host, target.port) in self._allowed
        if self._log.is_full or not self._note(**name, allowed=allowed):
            await self._answer(
                writer, "503 Service Unavailable", "the record of connections (logs/proxy.jsonl) takes no more"
            )
            return
        if not allowed:
            await self._answer(
                writer, "403 Forbidden", f"{target.host}:{target.port} is not a host that this agent may reach"
            )
            return
        started = time.monotonic()
        try:
            far_reader, far_writer = await asyncio.wait_for(_connect(target), CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            self._note(**name, error=str(error) or "timeout")
            await self._answer(writer, "502 Bad Gateway", f"{target.host} cannot be reached: {error or 'timeout'}")
            return
        sent, received = Count(), Count()
        try:
            if target.opening:
                far_writer.write(target.opening)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pump(reader, far_writer, sent), _pump(far_reader, writer, received))
        finally:
            far_writer.close()
            seconds = round(time.monotonic() - started, 3)
            self._note(**name, sent=sent.bytes, received=received.bytes, seconds=seconds)

    def _note(self, **fields: object) -> bool:
        """Writes a line, and says whether it could be written."""
        try:
            self._log.write(**fields)
        except OSError:
            return False
        return True

    async def _answer(self, writer: asyncio.StreamWriter, status: str, reason: str) -> None:
        body = f"a2rl: {reason}\n".encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


async def _connect(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to a host, by a tunnel through the user's own proxy if there is one.

    Raises:
        OSError: That is not possible.
    """
    address = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
    proxy = proxy_for(f"{'http' if target.opening else 'https'}://{address}")
    if proxy is None:
        return await asyncio.open_connection(target.host, target.port)
    is_https = proxy.scheme == "https"
    port = proxy.port or (HTTPS_PORT if is_https else HTTP_PORT)
    reader, writer = await asyncio.open_connection(proxy.hostname, port, ssl=is_https or None)
    login = unquote(f"{proxy.username}:{proxy.password or ''}") if proxy.username else ""
    known = f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}\r\n" if login else ""
    writer.write(f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{known}\r\n".encode())
    try:
        status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
        status = "nothing"
    if status != "200":
        writer.close()
        raise OSError(f"the proxy of this machine answers {status}")
    return reader, writer


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count) -> None:
    """Copies bytes until the end of the stream, and passes on the end."""
    try:
        while block := await reader.read(BLOCK):
            writer.write(block)
            await writer.drain()
            count.bytes += len(block)
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # one side is gone, so the other is not waited for: it may stay open for ever
        writer.close()


def parse_head(head: bytes) -> Target:
    """Returns the destination of a request to the proxy.

    Raises:
        ValueError: It is not a request to a proxy.
    """
    first, rest = head.split(b"\r\n", 1)
    method, address, version = first.decode("latin-1").split(" ")
    if method == "CONNECT":
        return Target(*endpoint(address), b"")
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{address!r} is not a URL for a proxy")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [
        line
        for line in rest.split(b"\r\n")
        if line and not line.lower().startswith((b"proxy-connection:", b"connection:", b"proxy-authorization:"))
    ]
    # Only one request per connection is served, because the next one may be for another host.
    lines = [f"{method} {path} {version}".encode("latin-1"), *kept, b"Connection: close", b"", b""]
    return Target(parts.hostname.lower(), parts.port or HTTP_PORT, b"\r\n".join(lines))
