"""Priorities, limits and cores: an agent sets those of its own processes, and gets to no more cores than at its start.

A priority cannot rise (calls.py takes the right to it), so what is left is to look at whose process it is. The cores
are a limit that the kernel does not keep for an ordinary user: whatever asks is kept to those that the agent had when
it first asked, which are those that it was started with, as nothing else changes them.
"""

import errno
import os
import sys
from collections.abc import Callable

from a2rl.isolation.caller import Call, has_own_processes, is_agents, process_of, thread_of

_MAX_MASK = 8192


def check_own_process(call: Call, argument: int) -> None:
    """Raises OSError unless the process with this number is the agent's."""
    if not has_own_processes(call.thread):
        number = call.signed(argument)
        if number < 0 or not is_agents(process_of(number)):
            raise PermissionError(errno.EPERM, "not a process of the agent")


class Cores:
    """Those that an agent's processes may run on."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def assign(self, call: Call, is_waiting: Callable[[], None]) -> int:
        """Raises OSError: PermissionError if there are others among them, or the process is not the agent's."""
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
