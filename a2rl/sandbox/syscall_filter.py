"""The seccomp filter of an agent: it enforces the rules in syscall_rules.py.

Contract: after `install_agent_filter`, the process can create only TCP sockets, local stream sockets, local datagram
sockets that only receive, and the socket for listing network interfaces. No connection bypasses Landlock or the broker,
as TCP Fast Open and io_uring would. The process cannot use namespaces, mounts, kernel modules, keyrings or kernel
tracing, or fake the input of a terminal. It cannot use System V memory or queues, to which file permissions do not
apply. It cannot take leases on files, set watches on files that the agent may not read, or change the metadata of files
that are not the agent's. It cannot slow down other processes by raising its priority, or move to cores that the agent
was not started on.

Calls that programs have a fallback for, and calls that future kernels add, fail as if the kernel did not know them.
With `broker=True`, the calls in `syscall_rules.BROKERED` are passed to the reader of the returned file descriptor.
Source: docs.kernel.org/userspace-api/seccomp_filter.html.
"""

import errno
import resource

from a2rl.linux import seccomp
from a2rl.linux.seccomp import ALLOW, JUMP_IF_EQUAL, KILL, RETURN, Instruction, fail_with
from a2rl.sandbox.syscall_rules import NEWEST, NUMBERS, Rule, rules

_MACHINES = ("x86_64", "aarch64")
_X32 = 0x40000000
"""Call numbers from here on belong to x32, a second call table of x86_64."""
_JUMP_IF_AT_LEAST = 0x35
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5


def number_of(call: str) -> int | None:
    """Returns the number of a call on this machine; None if the machine does not have it."""
    return NUMBERS[call][_MACHINES.index(seccomp.supported_machine())]


def install_agent_filter(broker: bool, metadata: bool = True) -> int | None:
    """Applies the filter to the calling thread and its future children, and prevents them from raising priority.

    Args:
        broker: Whether brokered calls wait for an answer through the returned file descriptor.
        metadata: Whether calls on modes, owners and times are brokered; False if the kernel protects those.

    Returns:
        The file descriptor from which the broker answers calls; None without a broker.

    Raises:
        OSError: The kernel has no seccomp (or no notifications), or the architecture is not supported.
    """
    for kind in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
        resource.setrlimit(kind, (0, 0))
    steps = _filter(rules(broker, metadata))
    if not broker:
        seccomp.install_filter(steps)
        return None
    try:  # Linux 5.19: a signal that arrives while the broker handles a call does not restart the call
        return seccomp.install_filter(steps, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return seccomp.install_filter(steps, _NEW_LISTENER)


def _filter(of: list[Rule]) -> list[Instruction]:
    steps: list[Instruction] = [
        (_JUMP_IF_AT_LEAST, 0, 1, _X32),
        (RETURN, 0, 0, KILL),
        (_JUMP_IF_AT_LEAST, 0, 1, NEWEST + 1),
        (RETURN, 0, 0, fail_with(errno.ENOSYS)),
    ]
    for call in dict.fromkeys(rule.call for rule in of):
        if (number := number_of(call)) is not None:
            block = [step for rule in of if rule.call == call for step in _rule_steps(rule)] + [(RETURN, 0, 0, ALLOW)]
            steps += [(JUMP_IF_EQUAL, 0, len(block), number), *block]
    return [*steps, (RETURN, 0, 0, ALLOW)]


def _rule_steps(rule: Rule) -> list[Instruction]:
    steps: list[Instruction] = [(RETURN, 0, 0, rule.becomes)]
    for condition in reversed(rule.where):
        steps = [*condition.steps(len(steps)), *steps]
    return steps
