"""Starts the driver: for a user at a port, or for another process on a socket of its own."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.driver.scenario import Scenario, load_scenario
from a2rl.errors import UsageError
from a2rl.process import module_command

HOST = "127.0.0.1"


def serve(scenario: Scenario, port: int, log: Path | None, announce: Callable[[str], None]) -> None:
    """Serves until Ctrl-C.

    Args:
        scenario: what to play.
        port: 0 for any free one.
        log: where each request served becomes a line.
        announce: called with the address before the first request.

    Raises:
        UsageError: the port is taken.
    """
    import uvicorn

    from a2rl.driver.app import create_app

    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise UsageError(f"port {port} cannot be used ({error.strerror}): choose another --port, or 0") from error
    with listener:
        announce(_address(listener))
        config = uvicorn.Config(create_app(scenario, log), log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def driver_process(scenario: str, log: Path) -> Iterator[str]:
    """The driver in a process of its own, ended with the context.

    Yields: its address, such as `http://127.0.0.1:40123`.
    """
    import httpx

    load_scenario(scenario)  # what is wrong with it is better said here
    with socket.create_server((HOST, 0)) as listener:
        url = _address(listener)
        process = subprocess.Popen(
            module_command("a2rl.driver", str(listener.fileno()), scenario, str(log)),
            stdin=subprocess.PIPE,
            pass_fds=(listener.fileno(),),
        )
    try:
        httpx.get(f"{url}/health", timeout=60, trust_env=False).raise_for_status()
        yield url
    finally:
        process.kill()
        process.wait()


def _address(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}"
