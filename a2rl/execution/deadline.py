"""Enforces the deadline of an agent in a loop that does nothing that could take long."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from a2rl.core.processes import check_stop
from a2rl.sandbox.command import AgentExit

TICK_S = 0.5


class Agent(Protocol):
    """A running agent."""

    def wait(self, timeout_s: float) -> AgentExit | None:
        """Waits for the agent's end; None if it is still running after the timeout."""
        ...

    def stop(self) -> AgentExit:
        """Ends the agent."""
        ...


class WatchResult(NamedTuple):
    """How an agent's work ended."""

    reason: str
    """finished, crashed, deadline or quota."""
    exited: AgentExit


def watch(
    agent: Agent, left_s: Callable[[], float], is_spent: Callable[[], bool], on_tick: Callable[[], None]
) -> WatchResult:
    """Waits until the agent ends, and ends it at its deadline or when a limit is reached.

    Args:
        agent: The running agent.
        left_s: Returns the seconds until the deadline, without delay.
        is_spent: Returns whether a limit is reached, without delay.
        on_tick: Called in each iteration, to check on other processes. It must return soon.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: The supervisor, or a service that the agent needs, has failed for good.
    """
    while True:
        check_stop()
        if (left := left_s()) <= 0:
            return WatchResult("deadline", agent.stop())
        if is_spent():
            return WatchResult("quota", agent.stop())
        if (ended := agent.wait(min(TICK_S, left))) is not None:
            if is_spent():  # it ended because it was refused what it asked for, however it put that
                return WatchResult("quota", ended)
            return WatchResult("finished" if ended.exit_code == 0 else "crashed", ended)
        on_tick()
