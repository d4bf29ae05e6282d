"""Serves the scripted LLM on a port of this machine until Ctrl-C."""

import socket
from collections.abc import Callable
from pathlib import Path

from a2rl.core.errors import UsageError
from a2rl.mock_llm.scenario import Scenario

HOST = "127.0.0.1"


def serve(scenario: Scenario, port: int, log: Path | None, announce: Callable[[str], None]) -> None:
    """Serves until Ctrl-C.

    Args:
        scenario: The scenario with the LLM's answers.
        port: The port to listen on; 0 chooses a free one.
        log: A file that gets one line for each request; None for no log.
        announce: Called with the URL before the first request.

    Raises:
        UsageError: The port cannot be used.
    """
    import uvicorn

    from a2rl.mock_llm.app import create_app

    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise UsageError(f"port {port} cannot be used ({error.strerror}): choose another --port, or 0") from error
    with listener:
        announce(_address(listener))
        config = uvicorn.Config(create_app(scenario, log), log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])


def _address(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}"
