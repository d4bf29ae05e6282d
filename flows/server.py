"""`python -P -m flows.server FD`: an embedded Prefect server for one command, on a socket that its parent listens on.

Prefect can start such a server by itself, but that one outlives a parent that is killed, and complains at the end.
"""

import socket
import sys
import threading

import uvicorn
from prefect.server.api.server import create_app

from a2rl.supervisor import die_with_parent


def main() -> None:
    """Serves until stdin closes."""
    die_with_parent()
    listener = socket.socket(fileno=int(sys.argv[1]))
    app = create_app(ephemeral=True, final=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=3))

    def end_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
