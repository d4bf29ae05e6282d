"""HTTP servers that belong to another process: on a socket that it listens on, and gone when it is."""

import socket
import sys
import threading
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

GRACEFUL_S = 5


def serve_for_parent(app: ASGIApp, descriptor: int, lifespan: Literal["on", "off"], **options: Any) -> None:
    """Serves on the inherited socket until standard input closes, which it does however the parent ends.

    Args:
        options: more settings of uvicorn.
    """
    config = uvicorn.Config(
        app, log_level="warning", lifespan=lifespan, timeout_graceful_shutdown=GRACEFUL_S, **options
    )
    server = uvicorn.Server(config)

    def end_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])
