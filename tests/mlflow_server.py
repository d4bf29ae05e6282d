"""A real MLflow server for tests, and a proxy before it that counts requests and can be down."""

import http.client
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.run_maker import wait_for

END_TIMEOUT_S = 10


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Serves an empty store below a folder; yields its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # of the clients: test machines may be busy
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/artifacts"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *store, "--port", str(port), "--workers", "1"],
            env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(lambda: _answers(url))
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(END_TIMEOUT_S)


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5) as answer:
        return bool(answer.status == http.HTTPStatus.OK)
    return False


class CountingProxy:
    """Passes requests on, and notes each as `METHOD /path`. While it is `down`, it ends each connection at once."""

    def __init__(self, target: str) -> None:
        self.seen: list[str] = []
        self.down = False
        host = target.removeprefix("http://")
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                proxy.seen.append(f"{self.command} {self.path.partition('?')[0]}")
                if proxy.down:
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                server = http.client.HTTPConnection(host)
                server.request(self.command, self.path, body, headers | {"Accept-Encoding": "identity"})
                answer = server.getresponse()
                content = answer.read()
                server.close()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - names that http.server calls

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
