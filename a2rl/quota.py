"""Quotas of tokens and of cost, looked at while an agent works.

Tokens are those that were seen on the way to the LLM (a2rl/relay) or that the agent's own transcript reports, whichever
are more. Cost is what the agent reports, and more in proportion where it reports fewer tokens than were seen. A quota
ends an agent soon after it has passed it, not before the request that passes it: what a request costs is known when it
is done. Agents that report no cost have no limit on it; the budget of time ends them all.
"""

import time

from a2rl.agent import Agent
from a2rl.relay.record import LlmLog, llm_log
from a2rl.run import RunDir
from a2rl.trajectory import atif_agent, read_attempts, usage_of

INTERVAL_S = 5.0
REST = 100
"""Reading a long transcript takes long: this many times as long, nothing is read."""


class Quota:
    """The limits of a run's spec."""

    def __init__(self, run: RunDir, agent: Agent) -> None:
        self._run = run
        self._agent = agent
        self._spec = run.spec
        self._next = time.monotonic() + INTERVAL_S
        self._seen = LlmLog(llm_log(run))
        self._tokens = 0
        self._cost: float | None = None

    def is_spent(self) -> bool:
        """Whether a limit has been passed; most calls return at once."""
        spec = self._spec
        if (spec.max_tokens, spec.max_cost_usd) == (None, None):
            return False
        seen = self._seen.look().tokens
        if spec.max_tokens is not None and max(seen, self._tokens) >= spec.max_tokens:
            return True
        self._read_transcript()
        cost = (self._cost or 0.0) * max(1.0, seen / max(1, self._tokens))
        return (spec.max_tokens is not None and self._tokens >= spec.max_tokens) or (
            spec.max_cost_usd is not None and cost >= spec.max_cost_usd
        )

    def _read_transcript(self) -> None:
        """Which is long, and read now and then."""
        now = time.monotonic()
        if self._agent.transcript is None or now < self._next:
            return
        used = usage_of(read_attempts(self._run, self._agent), atif_agent(self._run, self._agent, None))
        done = time.monotonic()
        self._next = done + max(INTERVAL_S, REST * (done - now))
        self._tokens, self._cost = (used.prompt_tokens or 0) + (used.completion_tokens or 0), used.cost_usd
