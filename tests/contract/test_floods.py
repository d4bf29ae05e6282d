"""Tests the grading service, and the stage that runs it, under floods of requests over real sockets."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest
import uvicorn

from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import EventLog
from a2rl.core.processes import Child
from a2rl.core.settings import Settings
from a2rl.grading import http_limits, service_process
from a2rl.grading.app import create_app
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.grading.service_process import ServiceProcess
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, Graded, SubmissionRefused
from a2rl.run.rules import GradingLimits
from tests.contract.test_grading_service import SERVICE, _insist, _processes, _wait_for_grader
from tests.run_maker import FakePool, submit_checkpoint, wait_for
from tests.small_model import trained_copy

SHORT_S = 0.4
HEAD = b"POST /submit HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


class Served:
    """A server in a thread, with the limits of the real server."""

    def __init__(self, run: RunDir, settings: Settings, pool: FakePool) -> None:
        service = GradingService(run, cast(GraderPool, pool))
        self.log = run.logs / "api.jsonl"
        self.beats = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        app = create_app(service, "gsm8k", [], EventLog(self.log, 100_000))

        async def beat() -> None:
            self.beats += 1

        self.server = uvicorn.Server(
            uvicorn.Config(
                app, lifespan="off", http=http_limits.Connection, ws="none", log_level="error", callback_notify=beat,
                timeout_notify=0, h11_max_incomplete_event_size=http_limits.MAX_HEAD_BYTES, timeout_graceful_shutdown=1,
            )
        )  # fmt: skip
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self._listener])))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return str(host), int(port)

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self.address, timeout=20)
        if data:
            connection.sendall(data)
        return connection

    def is_well(self) -> bool:
        """Returns whether the server answers requests."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False

    def __enter__(self) -> "Served":
        self._thread.start()
        wait_for(lambda: self.server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def served(run: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(http_limits, "ARRIVAL_TIMEOUT_S", SHORT_S)
    with Served(run, settings, FakePool()) as server:
        yield server


def answer_of(connection: socket.socket) -> bytes:
    """Returns everything that is received until the other end closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while block := connection.recv(1 << 16):
            said += block
    return said


@pytest.mark.heavy
def test_many_hundred_open_connections_do_not_stop_the_service(
    served: Served,
) -> None:
    """They do not fill its table of files either."""
    flood = []
    with contextlib.ExitStack() as stack:
        for _ in range(1500):
            with contextlib.suppress(OSError):
                flood.append(stack.enter_context(socket.create_connection(served.address, timeout=5)))
        before = served.beats
        wait_for(lambda: served.beats > before + 2)
        assert len(served.server.server_state.connections) <= http_limits.MAX_CONNECTIONS
        wait_for(lambda: not served.server.server_state.connections)  # they sent nothing
        assert served.is_well(), "with all of them still open at the other end"


@pytest.mark.parametrize("start", [b"", b"GET /he", HEAD, HEAD + b"Content-Length: 30\r\n\r\n{"])
def test_who_is_slow_is_not_waited_for(served: Served, start: bytes) -> None:
    with served.connect(start) as connection:
        began = time.monotonic()
        said = answer_of(connection)
    assert time.monotonic() - began < 10
    assert said == b"" or b"408" in said
    assert served.is_well()


def test_a_drip_of_headers_does_not_keep_a_connection(served: Served) -> None:
    with served.connect(b"GET /health HTTP/1.1\r\n") as connection, pytest.raises((ConnectionError, TimeoutError)):
        _drip(connection)
    assert served.is_well()


def _drip(connection: socket.socket) -> None:
    for number in range(200):
        connection.sendall(f"X-{number}: drip\r\n".encode())
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b"431 400"),  # by how it arrives
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"431 400"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1_000_000, b"400"),
        (HEAD + b"Content-Length: 99999999\r\n\r\n" + b"x" * 200_000, b"413"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 70_000, b"413"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", b"400"),
        (b"\x00\xff\x16\x03\x01 nonsense\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n"
         b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n", b"200"),
    ],
)  # fmt: skip
def test_malformed_requests_are_answered_and_the_service_goes_on(
    served: Served, request_: bytes, status: bytes
) -> None:
    with served.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(request_)
        said = answer_of(connection)
    assert said == b"" or said.split(b" ")[1] in {*status.split(), b"408"}  # if this machine is slow
    assert served.is_well()


def test_ten_thousand_requests_at_once_are_answered_steadily(served: Served) -> None:
    requests = b"GET /time HTTP/1.1\r\nHost: a\r\n\r\n" * 10_000
    with served.connect() as connection:
        sender = threading.Thread(target=_send, args=(connection, requests))
        sender.start()
        time.sleep(3)
        assert served.is_well(), "for others, too"
    sender.join(20)
    assert len(served.log.read_text().splitlines()) <= http_limits.BURST + 200


def test_who_asks_right_after_a_flood_of_requests_is_answered(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(served.connect(b"GET /time HTTP/1.1\r\nHost: a\r\n\r\n" * 3))
        assert served.is_well()


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(data)


def test_the_log_of_calls_stays_small(run: RunDir, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "api.jsonl", 2000)
    for _ in range(1000):
        log.write(path="x" * 100)
    assert log.path.stat().st_size <= 2000


# As the stage sees it: the real service in its own process.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_process, "SILENCE_TIMEOUT_S", 4.0)


def end_agent(run: RunDir) -> None:
    run.clock.stop()
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="finished", exit_code=0))


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_stopped_service_restarts_and_grades_what_it_received(
    run: RunDir, settings: Settings, base_model: Path
) -> None:
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    with ServiceProcess(run, settings) as server:
        server.wait_until_ready()
        threading.Thread(target=lambda: _quietly(server.url), daemon=True).start()
        _wait_for_grader()
        [service] = _processes(SERVICE)
        service.send_signal(signal.SIGSTOP)
        end_agent(run)
        server.drain()
        assert [process.pid for process in _processes(SERVICE)] != [service.pid]
    [graded] = run.ledger.events(Graded)
    assert graded.result.score is not None


def _quietly(url: str) -> None:
    with contextlib.suppress(Exception):
        _insist(url, "output/v1")


@pytest.mark.slow
def test_a_stopped_grader_is_ended_and_the_grade_is_made_again(
    new_run: type, settings: Settings, base_model: Path
) -> None:
    run = new_run(grading_limits=GradingLimits(silence_s=3.0))
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    with ServiceProcess(run, settings) as server:
        server.wait_until_ready()
        threading.Thread(target=lambda: _quietly(server.url), daemon=True).start()
        os.kill(_wait_for_grader(), signal.SIGSTOP)
        end_agent(run)
        server.drain()
    [graded] = run.ledger.events(Graded)
    assert graded.result.score is not None


@pytest.mark.heavy
def test_a_flood_does_not_make_the_service_look_dead(
    run: RunDir, settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_process, "SILENCE_TIMEOUT_S", 10.0)
    with ServiceProcess(run, settings) as server, contextlib.ExitStack() as stack:
        server.wait_until_ready()
        [service] = _processes(SERVICE)
        flood = []
        for _ in range(1500):
            with contextlib.suppress(OSError):
                flood.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=1)))
        until = time.monotonic() + 3
        while time.monotonic() < until:
            server.keep_alive()
            time.sleep(0.1)
        assert [process.pid for process in _processes(SERVICE)] == [service.pid]
        assert len(service.net_connections()) <= http_limits.MAX_CONNECTIONS + 10


class NoService(ServiceProcess):
    """A service whose processes do nothing; its clock is a fake that runs fast."""

    def __init__(self, run: RunDir, settings: Settings) -> None:
        self.started = 0
        self._time = 0.0
        super().__init__(run, settings, self._later)

    def _later(self) -> float:
        self._time += 100.0
        return self._time

    def _start(self) -> Child:
        self.started += 1
        if self._channel >= 0:
            os.close(self._channel)
        self._channel, theirs = os.pipe()
        os.set_blocking(self._channel, False)
        os.close(theirs)
        self._last_report = self._last_ok = self._now()
        self._ready, self._problem = False, ""
        return Child(["sleep", "600"], os.environ)


@pytest.mark.heavy
def test_draining_ends_even_with_a_service_that_does_nothing(run: RunDir, settings: Settings, base_model: Path) -> None:
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    submit_checkpoint(GradingService(run, cast(GraderPool, FakePool(at_once=False))), "output/v1")
    end_agent(run)
    service = NoService(run, settings)
    with service as server:
        with pytest.raises(InfrastructureError, match=r"(service|grader)\.log"):
            server.drain()
        assert service.started > 1
    assert not run.ledger.events(SubmissionRefused)


@pytest.mark.slow
def test_what_the_service_only_counted_reaches_the_ledger(run: RunDir, settings: Settings) -> None:
    with ServiceProcess(run, settings) as server:
        server.wait_until_ready()
        for _ in range(40):
            httpx.post(f"{server.url}/submit", json={"model_path": "output/absent"}, timeout=60)
        end_agent(run)
        server.drain()
    assert sum(event.count for event in run.ledger.events(SubmissionRefused)) == 40
