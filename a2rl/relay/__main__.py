"""`python -P -m a2rl.relay FD`: the relay as a process of its own, on a socket that its parent listens on.

Its first line on stdin is that of a2rl/keys.py, the second a JSON object with `base_url`, `log` and `max_tokens`. The
end of stdin ends it, once the answers under way have come, or after a few seconds.
"""

import json
import sys
from pathlib import Path

from a2rl.event_log import EventLog
from a2rl.keys import listen
from a2rl.relay.app import Relay
from a2rl.secrets import learn
from a2rl.serving import serve_for_parent
from a2rl.settings import Settings

MAX_CONNECTIONS = 128


def main() -> None:
    listen(sys.stdin)
    told = json.loads(sys.stdin.readline())
    keys = Settings.load().environ
    learn({name: keys[name] for name in told["stand_ins"].values()})
    stand_ins = {stand_in: keys[name] for stand_in, name in told["stand_ins"].items()}
    relay = Relay(told["base_url"], stand_ins, EventLog(Path(told["log"])), told["max_tokens"])
    serve_for_parent(relay, int(sys.argv[1]), lifespan="off", limit_concurrency=MAX_CONNECTIONS, http="h11", ws="none")


if __name__ == "__main__":
    main()
