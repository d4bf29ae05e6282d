"""`python -P -m flows.server FD`: an embedded Prefect server for one command, on a socket that its parent listens on.

Prefect can start such a server itself, but that server continues if its parent is killed, and it logs errors when it
ends.
"""

import sys

from prefect.server.api.server import create_app

from a2rl.core.serving import serve_for_parent
from a2rl.linux.process_tree import die_with_parent


def main() -> None:
    """Serves until stdin closes."""
    die_with_parent()
    serve_for_parent(create_app(ephemeral=True, final=True), int(sys.argv[1]), lifespan="on")


if __name__ == "__main__":
    main()
