"""Tests the proxy for LLM agents: which connections are allowed, which are refused, and what is logged."""

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from a2rl.core.event_log import MAX_BYTES
from a2rl.core.urls import endpoint, proxy_for
from a2rl.llm import proxy as llm_proxy
from a2rl.llm.proxy import Proxy, parse_head
from tests.http_server import Quiet, serving
from tests.run_maker import wait_for


class Echo(Quiet):
    def respond(self) -> None:
        self.say(f"{self.path} {self.headers['X-Kept']} ".encode() + self.read())


@pytest.fixture
def server() -> Iterator[int]:
    with serving(Echo) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "proxy.jsonl"


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def ask(proxy: int, head: str) -> bytes:
    with socket.create_connection(("127.0.0.1", proxy), timeout=10) as client:
        client.sendall(head.encode())
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_a_tunnel_to_a_listed_host_is_let_through_and_counted(server: int, log: Path) -> None:
    request = "POST /x HTTP/1.0\r\nX-Kept: yes\r\nContent-Length: 2\r\n\r\nhi"
    with Proxy([f"localhost:{server}"], log) as proxy:
        answer = ask(proxy.port, f"CONNECT localhost:{server} HTTP/1.1\r\n\r\n{request}")
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.0 200 OK")
    assert answer.endswith(b"/x yes hi")
    before, after = lines(log)
    assert (before["host"], before["allowed"]) == ("localhost", True)
    assert (after["host"], after["sent"]) == ("localhost", len(request))


def test_a_full_record_closes_the_proxy(server: int, log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(MAX_BYTES - 10)
    with Proxy([f"localhost:{server}"], log) as proxy:
        assert ask(proxy.port, f"CONNECT localhost:{server} HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503")
    assert log.stat().st_size == MAX_BYTES - 10


@pytest.mark.parametrize("is_listed", [True, False])
def test_nothing_is_reached_while_no_line_can_be_written(log: Path, is_listed: bool) -> None:
    log.symlink_to("/dev/full")  # a disk without room
    with socket.create_server(("127.0.0.1", 0)) as far:
        host = f"127.0.0.1:{far.getsockname()[1]}"
        with Proxy([host] if is_listed else [], log) as proxy:
            assert ask(proxy.port, f"CONNECT {host} HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503")
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.accept()


def test_a_connection_is_written_down_before_it_ends(server: int, log: Path) -> None:
    with (
        Proxy([f"localhost:{server}"], log) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client,
    ):
        client.sendall(f"CONNECT localhost:{server} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert [line["allowed"] for line in lines(log)] == [True]


def test_the_far_end_is_closed_if_the_end_is_not_recorded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    connect = llm_proxy._connect

    async def connected(target: llm_proxy.Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ends.append(await connect(target))
        return ends[-1]

    monkeypatch.setattr(llm_proxy, "_connect", connected)
    with (
        socket.create_server(("127.0.0.1", 0)) as far,
        Proxy([host := f"127.0.0.1:{far.getsockname()[1]}"], log) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client,
    ):
        client.sendall(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        log.unlink(missing_ok=True)
        log.symlink_to("/dev/full")
        far.accept()[0].close()
        client.shutdown(socket.SHUT_WR)
        wait_for(lambda: not proxy._open, 5)
        assert ends[0][1].is_closing()


def test_a_long_name_takes_little_of_the_record(log: Path) -> None:
    with Proxy(["localhost:1"], log) as proxy:
        ask(proxy.port, f"CONNECT {'x' * 60_000}:443 HTTP/1.1\r\n\r\n")
    assert log.stat().st_size < 500


@pytest.mark.parametrize(
    "target", ["127.0.0.1:{port}", "localhost:1", "example.org:443", "localhost.example.org:{port}"]
)
def test_any_other_host_or_port_is_refused_and_written_down(server: int, log: Path, target: str) -> None:
    with Proxy([f"localhost:{server}"], log) as proxy:
        answer = ask(proxy.port, f"CONNECT {target.format(port=server)} HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403")
    [line] = lines(log)
    assert line["allowed"] is False


def test_plain_http_reaches_a_listed_host_as_it_is(server: int, log: Path) -> None:
    with Proxy([f"localhost:{server}"], log) as proxy, httpx.Client(proxy=proxy.url, trust_env=False) as client:
        for number in range(2):
            answer = client.post(f"http://localhost:{server}/a?b=1", headers={"X-Kept": "yes"}, content=f"body{number}")
            assert answer.text == f"/a?b=1 yes body{number}"
        assert client.post("http://127.0.0.1:1/a").status_code == 403


@pytest.mark.parametrize(
    "head", ["GET / HTTP/1.1\r\n\r\n", "CONNECT\r\n\r\n", "\r\n\r\n", "x" * 100_000, "CONNECT :1 HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_request_to_a_proxy_is_told_so(log: Path, head: str) -> None:
    with Proxy(["example.org"], log) as proxy:
        assert ask(proxy.port, head).startswith(b"HTTP/1.1 400")


def test_a_host_that_is_down_is_a_bad_gateway(log: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Proxy([f"localhost:{port}"], log) as proxy:
        assert ask(proxy.port, f"CONNECT localhost:{port} HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 502")


def test_it_ends_with_connections_open(server: int, log: Path) -> None:
    with Proxy([f"localhost:{server}"], log) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        client.sendall(f"CONNECT localhost:{server} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert client.recv(100) == b""
    client.close()


def test_a_client_that_breaks_off_holds_no_connection(log: Path) -> None:
    """The other side may stay open for ever."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Proxy([f"localhost:{silent.getsockname()[1]}"], log) as proxy,
    ):
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        client.sendall(f"CONNECT localhost:{silent.getsockname()[1]} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        far, _ = silent.accept()
        with far:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
            client.close()
            wait_for(lambda: not proxy._open, 5)


def test_a_host_without_a_port_means_https() -> None:
    assert endpoint("API.example.org") == ("api.example.org", 443)
    assert endpoint("[::1]:8000") == ("::1", 8000)


def test_headers_for_the_proxy_stay_with_the_proxy() -> None:
    target = parse_head(b"GET http://h/p HTTP/1.1\r\nHost: h\r\nProxy-Authorization: secret\r\n\r\n")
    assert target[:2] == ("h", 80)
    assert b"secret" not in target.opening


def test_a_flood_of_connections_takes_no_more_than_its_share(
    server: int, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.llm.proxy.MAX_CONNECTIONS", 3)
    with Proxy([f"localhost:{server}"], log) as proxy:
        idle = [socket.create_connection(("127.0.0.1", proxy.port), timeout=10) for _ in range(3)]
        time.sleep(0.2)
        with pytest.raises((AssertionError, OSError)):
            assert ask(proxy.port, "GET / HTTP/1.1\r\n\r\n")
        for client in idle:
            client.close()
        time.sleep(0.2)
        assert ask(proxy.port, "GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")


@pytest.fixture
def users_proxy(tmp_path: Path, server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A proxy that the user has set for all hosts; returns its log."""
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Proxy([f"localhost:{server}"], tmp_path / "users.jsonl") as proxy:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url.replace("//", "//name:word@"))
        # Only what is sent to the first proxy goes to the second: that one is asked for hosts that it reaches directly.
        asked = proxy_for
        monkeypatch.setattr(
            llm_proxy, "proxy_for", lambda url: asked(url) if threading.current_thread() is not proxy._thread else None
        )
        yield tmp_path / "users.jsonl"


@pytest.mark.parametrize("is_plain", [True, False])
def test_an_agent_reaches_a_listed_host_through_the_users_proxy(
    server: int, log: Path, users_proxy: Path, is_plain: bool
) -> None:
    with Proxy([f"localhost:{server}"], log) as proxy:
        if is_plain:
            with httpx.Client(proxy=proxy.url, trust_env=False) as client:
                answer = client.post(f"http://localhost:{server}/x", headers={"X-Kept": "yes"}, content="hi").content
        else:
            request = "POST /x HTTP/1.0\r\nX-Kept: yes\r\nContent-Length: 2\r\n\r\nhi"
            answer = ask(proxy.port, f"CONNECT localhost:{server} HTTP/1.1\r\n\r\n{request}")
    assert answer.endswith(b"/x yes hi")
    assert [line["allowed"] for line in (lines(log)[0], lines(users_proxy)[0])] == [True, True]


def test_what_the_users_proxy_refuses_is_a_bad_gateway(log: Path, users_proxy: Path) -> None:
    with Proxy(["localhost:1"], log) as proxy:
        assert ask(proxy.port, "CONNECT localhost:1 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 502")
    assert "403" in str(lines(log)[1]["error"])
