"""HTTP servers for tests: a handler in a thread, or one of our modules in a process of its own.

class Answers(Quiet):
    def respond(self) -> None:
        self.say(b"{}")

with serving(Answers) as url:
    httpx.get(url)
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_server
from threading import Thread

import httpx


class Quiet(BaseHTTPRequestHandler):
    """Answers requests of all methods with `respond`, and writes no log."""

    def respond(self) -> None:
        """Answers a request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.respond()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names in http.server

    def read(self) -> bytes:
        """Returns the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def say(self, body: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        """Sends an answer."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serves within the context; yields the URL, such as `http://127.0.0.1:40123`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def served_by(module: str, *arguments: str, port: int = 0) -> "Iterator[tuple[str, subprocess.Popen[bytes]]]":
    """Runs `python -m MODULE DESCRIPTOR ARGUMENT ...` within the context, with a socket that listens on a port.

    Yields:
        Its URL, which answers /health, and the process.
    """
    with create_server(("127.0.0.1", port)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(listener.fileno()), *arguments],
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
            cwd=Path(__file__).resolve().parents[1],  # so that `tests` can be imported
        )
    try:
        httpx.get(f"{url}/health", timeout=60, trust_env=False).raise_for_status()
        yield url, process
    finally:
        process.kill()
        process.wait()
