"""Priorities, limits and cores: an agent can set those of its own processes, but use no more cores than at its start.

An agent cannot raise priorities, because syscall_filter.py removes the right to do so. The broker only has to check
that the process belongs to the agent. Cores are different: the kernel lets ordinary users move their processes to any
core. The broker therefore allows only the cores that the agent had at its first call. These are the cores that it was
started with, because nothing else changes them.
"""

import errno
import os
import sys
from collections.abc import Callable

from a2rl.sandbox.broker.caller import Call, has_own_processes, is_agents, process_of, thread_of

_MAX_MASK = 8192


def check_own_process(call: Call, argument: int) -> None:
    """Raises OSError unless the process that this argument of the call names belongs to the agent."""
    if not has_own_processes(call.thread):
        number = call.signed(argument)
        if number < 0 or not is_agents(process_of(number)):
            raise PermissionError(errno.EPERM, "not a process of the agent")


class CoreLimit:
    """The cores on which an agent's processes may run."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def assign(self, call: Call, is_waiting: Callable[[], None]) -> int:
        """Sets the cores on which a thread of the agent may run.

        Raises:
            PermissionError: The agent may not use all of these cores, or the thread does not belong to it.
            OSError: The kernel refuses, or the caller no longer waits.
        """
        if not self._given:
            self._given = os.sched_getaffinity(call.thread)
        mask = call.structure(call.arguments[2], min(call.unsigned(1), _MAX_MASK))
        wanted = _members(mask)
        thread = thread_of(call, call.signed(0))
        is_waiting()
        if not wanted <= self._given:
            raise PermissionError(errno.EPERM, "more cores than the agent was given")
        os.sched_setaffinity(thread, wanted)
        return 0


def _members(mask: bytes) -> set[int]:
    bits = int.from_bytes(mask, sys.byteorder)
    return {place for place in range(bits.bit_length()) if bits >> place & 1}
