"""Runs the Prefect flow from the command line, in this process, with an embedded server and without its messages.

If the user has a Prefect server (PREFECT_API_URL is set), that one is used and its settings are left alone.
"""

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from a2rl.cli.console import err
from a2rl.cli.follower import Follower
from a2rl.cli.watching import LiveTable
from a2rl.core.errors import InfrastructureError, InterruptedByUserError, RunFailedError
from a2rl.core.processes import child_environment, end_child, is_healthy, module_command
from a2rl.core.settings import Settings
from a2rl.results.live import Watcher, belongs_to
from a2rl.run.disk import format_bytes
from a2rl.sandbox.agent_log import last_lines

START_TIMEOUT_S = 120
END_TIMEOUT_S = 5
DATABASE_BYTES = 20_000_000


def run_flow(parameters: dict[str, Any], run_ids: list[str], settings: Settings) -> None:
    """Runs the flow `a2rl` and prints what happens in its runs.

    Raises:
        A2rlError: The flow has failed.
        InterruptedByUserError: The user stopped it.
    """
    has_own_server = bool(settings.environ.get("PREFECT_API_URL"))
    server = nullcontext(_already_there) if has_own_server else embedded_server(settings)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with err.status("starting Prefect (the first time takes half a minute)") as status, server as wait_until_ready:
            from flows.pipeline import a2rl  # the import takes seconds, during which the server starts

            wait_until_ready()
            status.stop()
            watcher = Watcher(settings.runs, belongs_to(run_ids))
            with Follower(settings.runs, err, set(run_ids)), LiveTable(watcher.look, err):
                a2rl(**parameters)
    except (KeyboardInterrupt, InterruptedByUserError) as error:
        raise InterruptedByUserError(
            f"stopped; nothing is lost. Continue with: a2rl resume {' '.join(run_ids)}"
        ) from error


@contextmanager
def showing(show: Callable[[], None]) -> Iterator[None]:
    """Calls `show` when the runs have ended, even if some of them failed.

    It is not called if nothing was started or if the user stopped the runs.
    """
    try:
        yield
    except RunFailedError:
        show()
        raise
    show()


def _already_there() -> None:
    """Returns at once, because the user's own server is already running."""


def _interrupt(*_: object) -> None:
    """Makes SIGTERM end a command in the same way as Ctrl-C."""
    raise KeyboardInterrupt


@contextmanager
def embedded_server(settings: Settings) -> Iterator[Callable[[], None]]:
    """Starts a Prefect server for this command only, on a free port. Its database is in .prefect/.

    Yields:
        A function that waits until the server answers and raises InfrastructureError if it does not start.

    Raises:
        InfrastructureError: The disk is full.
    """
    quiet = {
        "PREFECT_HOME": str(settings.root / ".prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    log = settings.root / ".prefect" / "server.log"
    log.parent.mkdir(exist_ok=True)
    if (free := shutil.disk_usage(log.parent).free) < DATABASE_BYTES:
        raise InfrastructureError(
            f"{log.parent} has {format_bytes(free)} left, and the database of Prefect in it needs "
            f"{format_bytes(DATABASE_BYTES)}: free some disk space"
        )
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener, log.open("ab") as output:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                module_command("flows.server", str(listener.fileno())),
                cwd=settings.root,
                env=child_environment(settings) | quiet,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )

        server = _Server(start, url, log)
        try:
            # Prefect reads its settings from the environment when it is imported, which happens later.
            os.environ.update(quiet | {"PREFECT_API_URL": url})
            yield server.wait_until_ready
        finally:
            server.close()


class _Server:
    """The embedded server's process. If it is killed, a new one replaces it; requests wait at the socket meanwhile."""

    def __init__(self, start: Callable[[], "subprocess.Popen[bytes]"], url: str, log: Path) -> None:
        self._start, self._url, self._log = start, url, log
        self._log_start = log.stat().st_size
        self._process = start()
        self._closing = threading.Event()
        self._guard = threading.Thread(target=self._replace_dead, daemon=True)

    def wait_until_ready(self) -> None:
        if not is_healthy(self._process, self._url, START_TIMEOUT_S):
            said = (last_lines(self._log, self._log_start) or [""])[-1]
            raise InfrastructureError(
                f"the embedded Prefect server did not start{f' ({said})' if said else ''}; see {self._log}, or set "
                "PREFECT_API_URL to your own"
            )
        self._guard.start()

    def _replace_dead(self) -> None:
        while not self._closing.wait(1):
            if self._process.poll() is not None:
                self._process = self._start()

    def close(self) -> None:
        self._closing.set()
        if self._guard.is_alive():
            self._guard.join()
        end_child(self._process, END_TIMEOUT_S)
