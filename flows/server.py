"""`python -P -m flows.server FD`: an embedded Prefect server for one command, on a socket that its parent listens on.

Prefect can start such a server by itself, but that one outlives a parent that is killed, and complains at the end.
"""

import sys

from prefect.server.api.server import create_app

from a2rl.isolation.start import die_with_parent
from a2rl.serving import serve_for_parent


def main() -> None:
    """Serves until stdin closes."""
    die_with_parent()
    serve_for_parent(create_app(ephemeral=True, final=True), int(sys.argv[1]), lifespan="on")


if __name__ == "__main__":
    main()
