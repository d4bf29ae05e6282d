"""Quotas of tokens and of cost: looked up in the agent's own transcript while it works.

They end an agent soon after it has passed them, not before the request that passes them: what a request costs is known
when it is done. Agents that report no cost have no limit on it; the budget of time ends them all.
"""

import time

from a2rl.agent import Agent
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

    def is_spent(self) -> bool:
        """Whether a limit has been passed; most calls return at once."""
        now = time.monotonic()
        limits = self._spec.max_tokens, self._spec.max_cost_usd
        if limits == (None, None) or self._agent.transcript is None or now < self._next:
            return False
        used = usage_of(read_attempts(self._run, self._agent), atif_agent(self._run, self._agent, None))
        done = time.monotonic()
        self._next = done + max(INTERVAL_S, REST * (done - now))
        tokens = (used.prompt_tokens or 0) + (used.completion_tokens or 0)
        max_tokens, max_cost = limits
        return (max_tokens is not None and tokens >= max_tokens) or (
            max_cost is not None and used.cost_usd is not None and used.cost_usd >= max_cost
        )
