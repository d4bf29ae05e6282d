"""HTTP servers that run as a child process on a socket of their parent, and stop when the parent ends."""

import logging
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

GRACEFUL_S = 5


class FirstOfItsKind(logging.Filter):
    """Passes one trace for each type of error, and all lines without a trace."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[type[BaseException]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Says whether a line is logged."""
        kind = record.exc_info[0] if record.exc_info else None
        if kind is None:
            return True
        is_new = kind not in self._seen
        self._seen.add(kind)
        return is_new


def serve_for_parent(
    app: ASGIApp,
    descriptor: int,
    lifespan: Literal["on", "off"],
    on_line: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """Serves on the inherited socket until standard input closes, which happens however the parent ends.

    Of each kind of failure, one trace is logged: clients may be hostile, and the log has no limit.

    Args:
        lifespan: Whether the application handles ASGI lifespan events.
        on_line: Called in a thread for every line on standard input.
        options: Further settings of uvicorn.
    """
    settings = {"log_level": "warning", "timeout_graceful_shutdown": GRACEFUL_S, **options}
    server = uvicorn.Server(uvicorn.Config(app, lifespan=lifespan, **settings))
    for name in ("uvicorn.error", "asyncio"):  # the failures of applications, and of the server itself
        logging.getLogger(name).addFilter(FirstOfItsKind())

    def end_with_parent() -> None:
        try:
            for _ in sys.stdin:
                on_line()
        finally:
            server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])
