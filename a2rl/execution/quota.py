"""Quotas of tokens and of cost, checked while an agent works.

The tokens are those measured by the relay (a2rl/llm/relay) or those reported in the agent's transcript, whichever are
more. The cost is what the agent reports, scaled up if it reports fewer tokens than were measured. The agent is ended
soon after it has exceeded a quota, and not before the request that exceeds it, because the cost of a request is known
only afterwards. Agents that report no cost have no cost limit; the time budget ends them.
"""

import time

from a2rl.agents.definition import Agent
from a2rl.llm.relay.request_log import RequestLogReader, request_log_path
from a2rl.recording.trajectory import atif_agent, read_attempts, usage_of
from a2rl.run.directory import RunDir

INTERVAL_S = 5.0
READ_SHARE = 0.01
"""At most this share of the time is spent on reading a long transcript."""


class UsageQuota:
    """Checks an agent's use of its LLM against the limits of the run's spec."""

    def __init__(self, run: RunDir, agent: Agent) -> None:
        self._run = run
        self._agent = agent
        self._spec = run.spec
        self._next = time.monotonic() + INTERVAL_S
        self._seen = RequestLogReader(request_log_path(run))
        self._tokens = 0
        self._cost: float | None = None

    def is_spent(self) -> bool:
        """Says whether a limit has been exceeded; most calls return at once."""
        spec = self._spec
        if (spec.max_tokens, spec.max_cost_usd) == (None, None):
            return False
        seen = self._seen.read().tokens
        if spec.max_tokens is not None and max(seen, self._tokens) >= spec.max_tokens:
            return True
        self._read_transcript()
        cost = (self._cost or 0.0) * max(1.0, seen / max(1, self._tokens))
        if spec.max_tokens is not None and self._tokens >= spec.max_tokens:
            return True
        return spec.max_cost_usd is not None and cost >= spec.max_cost_usd

    def _read_transcript(self) -> None:
        """Reads the transcript, if it is time to do so again."""
        now = time.monotonic()
        if self._agent.transcript is None or now < self._next:
            return
        used = usage_of(read_attempts(self._run, self._agent), atif_agent(self._run, self._agent, None))
        done = time.monotonic()
        self._next = done + max(INTERVAL_S, (done - now) / READ_SHARE)
        self._tokens = (used.prompt_tokens or 0) + (used.completion_tokens or 0)
        self._cost = used.cost_usd
