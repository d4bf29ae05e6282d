"""`python -P -m a2rl.llm.relay FD`: runs the relay in a separate process, on a socket that its parent listens on.

The first line on stdin is the message of a2rl/llm/keys.py. The second line is a `RelaySettings` in JSON. When stdin
closes, the relay ends after the current answers, or after a few seconds.
"""

import sys

from a2rl.core.secrets import register_secrets
from a2rl.core.serving import serve_for_parent
from a2rl.core.settings import Settings
from a2rl.llm.keys import receive_keys
from a2rl.llm.relay.app import Relay
from a2rl.llm.relay.process import RelaySettings

MAX_CONNECTIONS = 128


def main() -> None:
    """Runs the relay until standard input closes."""
    receive_keys(sys.stdin)
    told = RelaySettings.model_validate_json(sys.stdin.readline())
    environ = Settings.load().environ
    register_secrets({name: environ[name] for name in told.keys})
    relay = Relay(told, {stand_in: environ[name] for name, stand_in in told.keys.items()})
    serve_for_parent(relay, int(sys.argv[1]), lifespan="off", limit_concurrency=MAX_CONNECTIONS, http="h11", ws="none")


if __name__ == "__main__":
    main()
