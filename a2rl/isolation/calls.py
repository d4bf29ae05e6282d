"""The system calls that an agent does not have, of all that programs use: a seccomp filter.

Contract: after `withhold` there are no sockets but TCP's, local streams and the kernel's list of network interfaces; no
connection that Landlock or the broker does not see (TCP Fast Open, io_uring); no namespaces, mounts, kernel modules,
keyrings, tracing of the kernel, or input forged for a terminal; no System V memory or queues, which know no folders; no
leases, watches or changed metadata on files that are not the agent's; no way to slow down other processes by their
priority, or to move to cores that the agent was not started on. rules.py has the whole table.

What programs have a second way for fails as if the kernel did not know it, and so does a call that a future kernel
adds. `broker=True` hands the calls of `rules.ASKED` to whoever reads the returned file.
Source: docs.kernel.org/userspace-api/seccomp_filter.html.
"""

import errno
import resource

from a2rl.isolation.rules import NEWEST, NUMBERS, Rule, rules
from a2rl.sandbox import seccomp
from a2rl.sandbox.seccomp import ALLOW, JUMP_IF_EQUAL, KILL, RETURN, Step, refusal

_MACHINES = ("x86_64", "aarch64")
_X32 = 0x40000000
"""Numbers from here on are those of x32, a second table on x86_64."""
_JUMP_IF_AT_LEAST = 0x35
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5


def number_of(call: str) -> int | None:
    """On this machine; None: it has not got it."""
    return NUMBERS[call][_MACHINES.index(seccomp.supported_machine())]


def withhold(broker: bool, metadata: bool = True) -> int | None:
    """Gives the calls up, for the calling thread and all that it starts; and any priority above the present one.

    Args:
        broker: what has to be looked at waits for the answer of whoever reads the returned file.
        metadata: modes, owners and times of files among that; False where the kernel keeps them.

    Raises:
        OSError: the kernel has no seccomp (or, for the broker, no notifications), or its architecture is unknown.
    """
    for kind in (resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
        resource.setrlimit(kind, (0, 0))
    steps = _filter(rules(broker, metadata))
    if not broker:
        seccomp.install(steps)
        return None
    try:  # Linux 5.19: a signal that comes while the broker is at work does not make the call start again
        return seccomp.install(steps, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return seccomp.install(steps, _NEW_LISTENER)


def _filter(of: list[Rule]) -> list[Step]:
    steps: list[Step] = [
        (_JUMP_IF_AT_LEAST, 0, 1, _X32),
        (RETURN, 0, 0, KILL),
        (_JUMP_IF_AT_LEAST, 0, 1, NEWEST + 1),
        (RETURN, 0, 0, refusal(errno.ENOSYS)),
    ]
    for call in dict.fromkeys(rule.call for rule in of):
        if (number := number_of(call)) is not None:
            block = [step for rule in of if rule.call == call for step in _rule_steps(rule)] + [(RETURN, 0, 0, ALLOW)]
            steps += [(JUMP_IF_EQUAL, 0, len(block), number), *block]
    return [*steps, (RETURN, 0, 0, ALLOW)]


def _rule_steps(rule: Rule) -> list[Step]:
    steps: list[Step] = [(RETURN, 0, 0, rule.becomes)]
    for condition in reversed(rule.where):
        steps = [*condition.steps(len(steps)), *steps]
    return steps
