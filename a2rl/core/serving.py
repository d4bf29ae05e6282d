"""HTTP servers that run as a child process on a socket of their parent, and stop when the parent ends."""

import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

GRACEFUL_S = 5


def serve_for_parent(
    app: ASGIApp,
    descriptor: int,
    lifespan: Literal["on", "off"],
    on_line: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """Serves on the inherited socket until standard input closes, which happens however the parent ends.

    Args:
        lifespan: Whether the application handles ASGI lifespan events.
        on_line: Called in a thread for every line on standard input.
        options: Further settings of uvicorn.
    """
    settings = {"log_level": "warning", "timeout_graceful_shutdown": GRACEFUL_S, **options}
    server = uvicorn.Server(uvicorn.Config(app, lifespan=lifespan, **settings))

    def end_with_parent() -> None:
        try:
            for _ in sys.stdin:
                on_line()
        finally:
            server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])
