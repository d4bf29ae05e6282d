"""`python -P -m a2rl.llm.relay FD`: runs the relay in a separate process, on a socket that its parent listens on.

The first line on stdin is the message of a2rl/llm/keys.py. The second line is a JSON object with the
configuration of a2rl/llm/relay/process.py. When stdin closes, the relay ends after the current answers, or after a few
seconds.
"""

import json
import sys
from pathlib import Path

from a2rl.config.params import TokenPrices
from a2rl.core.event_log import EventLog
from a2rl.core.secrets import register_secrets
from a2rl.core.serving import serve_for_parent
from a2rl.core.settings import Settings
from a2rl.llm.keys import receive_keys
from a2rl.llm.relay.app import Relay
from a2rl.llm.relay.prices import PriceTable
from a2rl.llm.relay.rate import SharedRate

MAX_CONNECTIONS = 128


def main() -> None:
    """Runs the relay until standard input closes."""
    receive_keys(sys.stdin)
    told = json.loads(sys.stdin.readline())
    keys = Settings.load().environ
    register_secrets({name: keys[name] for name in told["stand_ins"].values()})
    stand_ins = {stand_in: keys[name] for stand_in, name in told["stand_ins"].items()}
    relay = Relay(
        told["base_url"],
        stand_ins,
        EventLog(Path(told["log"])),
        PriceTable(told["base_url"], {name: TokenPrices.model_validate(each) for name, each in told["prices"].items()}),
        told["allowed"],
        told["max_tokens"],
        told["max_cost_usd"],
        SharedRate.model_validate(told["rate"]) if told["rate"] else None,
    )
    serve_for_parent(relay, int(sys.argv[1]), lifespan="off", limit_concurrency=MAX_CONNECTIONS, http="h11", ws="none")


if __name__ == "__main__":
    main()
