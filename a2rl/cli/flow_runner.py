"""Runs the Prefect flow from the command line, in this process, with an embedded server and without its messages.

If the user has a Prefect server (PREFECT_API_URL is set), that one is used and its settings are left alone.
"""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from a2rl.cli.console import err
from a2rl.cli.follower import Follower
from a2rl.cli.watching import LiveTable
from a2rl.core.errors import InfrastructureError, InterruptedByUserError, RunFailedError
from a2rl.core.processes import Child, RestartedChild
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
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"

        def start() -> Child:
            descriptor = listener.fileno()
            return Child.of_module(
                "flows.server", descriptor, settings=settings, log=log, descriptors=[descriptor], variables=quiet
            )

        def wait_until_ready() -> None:
            if not server.child.is_healthy(url, START_TIMEOUT_S):
                problem = (last_lines(log, log_start) or [""])[-1]
                raise InfrastructureError(
                    f"the embedded Prefect server did not start{f' ({problem})' if problem else ''}; see {log}, or set "
                    "PREFECT_API_URL to your own"
                )
            server.watch()

        log_start = log.stat().st_size if log.exists() else 0
        server = RestartedChild(start)
        try:
            # Prefect reads its settings from the environment when it is imported, which happens later.
            os.environ.update(quiet | {"PREFECT_API_URL": url})
            yield wait_until_ready
        finally:
            server.close(END_TIMEOUT_S)
