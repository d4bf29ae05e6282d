"""Watches the deadline of an agent: the loop does that and nothing else that could take long."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from a2rl.process import check_stop
from a2rl.supervisor import AgentExit

TICK_S = 0.5


class Agent(Protocol):
    """A running agent."""

    def wait(self, timeout_s: float) -> AgentExit | None: ...

    def stop(self) -> AgentExit: ...


class Watched(NamedTuple):
    """How an agent's work ended."""

    reason: str
    """finished, crashed, deadline or quota."""
    exited: AgentExit


def watch(agent: Agent, left_s: Callable[[], float], is_spent: Callable[[], bool], look: Callable[[], None]) -> Watched:
    """Returns when the agent has ended or was ended.

    Args:
        left_s: the seconds until its deadline; returns at once.
        is_spent: whether its quota is; returns at once.
        look: called in each turn, to see after other processes; returns at once, or soon.

    Raises:
        Interrupted: the user stopped the pipeline.
        InfrastructureError: its supervisor, or what it needs, is gone for good.
    """
    while True:
        check_stop()
        if (left := left_s()) <= 0:
            return Watched("deadline", agent.stop())
        if is_spent():
            return Watched("quota", agent.stop())
        if (ended := agent.wait(min(TICK_S, left))) is not None:
            return Watched("finished" if ended.exit_code == 0 else "crashed", ended)
        look()
