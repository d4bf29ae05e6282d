"""The limits of tokens and of cost, checked while an agent works.

They apply to what the relay measured (a2rl/llm/relay), which refuses further requests as soon as one is reached. The
agent is ended soon afterwards.
"""

from a2rl.core.event_log import EventLog
from a2rl.llm.gateway import PROXY_LOG
from a2rl.llm.relay.request_log import FULL, RequestLogReader, limit_reached, request_log_path
from a2rl.run.directory import RunDir


class UsageLimits:
    """Checks what an agent has used against the limits of its run, and the records of its requests for room."""

    def __init__(self, run: RunDir) -> None:
        self._spec, self._seen = run.spec, RequestLogReader(request_log_path(run))
        self._requests, self._connections = EventLog(request_log_path(run)), EventLog(run.logs / PROXY_LOG)
        self.reached = ""
        """Which limit is reached, in words; empty if none."""

    def are_reached(self) -> bool:
        """Looks at what is new, and says whether a limit is reached."""
        self.reached = limit_reached(self._seen.read(), self._spec.max_tokens, self._spec.max_cost_usd)
        if self._requests.is_full:
            self.reached = FULL
        elif self._connections.is_full:
            self.reached = f"the record of connections to other hosts (logs/{PROXY_LOG}) is full, so no more are made"
        return bool(self.reached)
