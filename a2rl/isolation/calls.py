"""The system calls that an agent does not have, of all that programs use: a seccomp filter.

Contract: after `withhold` there are no sockets but TCP's, local streams and the kernel's list of network interfaces; no
connection that Landlock or the broker does not see (TCP Fast Open, io_uring); no namespaces, mounts, kernel modules,
keyrings, tracing of the kernel, or input forged for a terminal; no System V memory or queues, which know no folders.
What programs have a second way for fails as if the kernel did not know it. `broker=True` hands `connect` and `listen`
to whoever reads the returned file. Source: docs.kernel.org/userspace-api/seccomp_filter.html, and the kernel's tables.

An agent may do anything else that the user's programs may: the list says what is forbidden, and a call that a future
kernel adds is not on it. Files are Landlock's matter, which has no such gap.
"""

import errno
from collections.abc import Iterator
from typing import NamedTuple

from a2rl.sandbox import seccomp
from a2rl.sandbox.seccomp import ALLOW, JUMP_IF_EQUAL, KILL, LOAD, RETURN, Step, refusal

NUMBERS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "setns": (308, 268),
    "unshare": (272, 97), "clone": (56, 220), "clone3": (435, 435),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "open_by_handle_at": (304, 265), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "listen": (50, 201),
    "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269), "setsockopt": (54, 208),
    "prctl": (157, 167), "seccomp": (317, 277), "prlimit64": (302, 261), "ioctl": (16, 29),
}  # fmt: skip
"""Of the calls that the rules name, on x86_64 and aarch64."""
_MACHINES = ("x86_64", "aarch64")
_X32 = 0x40000000
"""Numbers from here on are those of x32, a second table on x86_64."""

_AND, _JUMP_IF_SET, _JUMP_IF_AT_LEAST = 0x54, 0x45, 0x35
_NOTIFY = 0x7FC00000
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5

_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _SEQPACKET, _SOCKET_TYPES = 1, 5, 0xF
_TCP, _TCP_FASTOPEN_CONNECT, _MSG_FASTOPEN = 6, 30, 0x20000000
_NAMESPACES = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80
"""For `unshare`; in the flags of `clone` this bit is part of a signal's number."""
_PR_SET_DUMPABLE, _TIOCSTI, _TIOCLINUX = 4, 0x5412, 0x541C


class Condition(NamedTuple):
    """Of one argument of a call: the bits under `mask` are `value`, or with `any_bit` some of `value` are set."""

    argument: int
    value: int
    mask: int = 0xFFFFFFFF
    any_bit: bool = False
    high: bool = False
    """The upper half of the argument instead of the lower."""

    def steps(self, otherwise: int) -> list[Step]:
        """Goes on if it holds, else jumps over so many steps."""
        load = (LOAD, 0, 0, 16 + 8 * self.argument + 4 * self.high)
        if self.any_bit:
            return [load, (_JUMP_IF_SET, 0, otherwise, self.value)]
        return [load, (_AND, 0, 0, self.mask), (JUMP_IF_EQUAL, 0, otherwise, self.value)]


class Rule(NamedTuple):
    """What becomes of a call if all of `where` holds. The first rule of a call that fits counts; none allows it."""

    call: str
    becomes: int
    where: tuple[Condition, ...] = ()


def _sockets() -> Iterator[Rule]:
    for kind in (_STREAM, _SEQPACKET):
        yield Rule("socket", ALLOW, (Condition(0, _UNIX), Condition(1, kind, _SOCKET_TYPES)))
        yield Rule("socketpair", ALLOW, (Condition(1, kind, _SOCKET_TYPES),))
    for family in (_INET, _INET6):
        for protocol in (0, _TCP):
            yield Rule(
                "socket", ALLOW, (Condition(0, family), Condition(1, _STREAM, _SOCKET_TYPES), Condition(2, protocol))
            )
    yield Rule("socket", ALLOW, (Condition(0, _NETLINK), Condition(2, 0)))
    for family in (_UNIX, _INET, _INET6, _NETLINK):
        yield Rule("socket", refusal(errno.EACCES), (Condition(0, family),))
    yield Rule("socket", refusal(errno.EAFNOSUPPORT))
    yield Rule("socketpair", refusal(errno.EACCES))  # a datagram socket can send to any address, connected or not
    for call, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        yield Rule(call, refusal(errno.EOPNOTSUPP), (Condition(flags, _MSG_FASTOPEN, any_bit=True),))
    yield Rule("setsockopt", refusal(errno.ENOPROTOOPT), (Condition(1, _TCP), Condition(2, _TCP_FASTOPEN_CONNECT)))


def _dangers() -> Iterator[Rule]:
    unknown = (
        "clone3",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "shmget",
        "semget",
        "msgget",
        "mq_open",
    )
    tested = {"clone", "unshare", "socket", "socketpair", "connect", "listen", "sendto", "sendmsg", "sendmmsg"}
    tested |= {"setsockopt", "prctl", "seccomp", "prlimit64", "ioctl"}
    for call in (name for name in NUMBERS if name not in tested):
        yield Rule(call, refusal(errno.ENOSYS if call in unknown else errno.EPERM))
    yield Rule("clone", refusal(errno.EPERM), (Condition(0, _NAMESPACES, any_bit=True),))
    yield Rule("unshare", refusal(errno.EPERM), (Condition(0, _NAMESPACES | _NEW_TIME_NAMESPACE, any_bit=True),))
    for request in (_TIOCSTI, _TIOCLINUX):
        yield Rule("ioctl", refusal(errno.EPERM), (Condition(1, request),))
    # The limits of others, the grader among them: every process of a user may change those of any other.
    yield Rule("prlimit64", ALLOW, (Condition(0, 0),))
    for high in (False, True):
        yield Rule("prlimit64", refusal(errno.EPERM), (Condition(2, 0xFFFFFFFF, any_bit=True, high=high),))
    # Nobody can answer for a filter of the agent's own, and so be asked in the broker's place.
    yield Rule("seccomp", refusal(errno.EBUSY), (Condition(1, _NEW_LISTENER, any_bit=True),))
    # A process that hides from its user hides from the broker too, and could not connect. Nothing is lost: no other
    # user can look into it, and none of the agent's processes knows more than the others.
    yield Rule("prctl", refusal(0), (Condition(0, _PR_SET_DUMPABLE),))


def number_of(call: str) -> int:
    """On this machine."""
    return NUMBERS[call][_MACHINES.index(seccomp.supported_machine())]


def withhold(broker: bool) -> int | None:
    """Gives the calls up, for the calling thread and all that it starts.

    Args:
        broker: `connect` and `listen` wait for the answer of whoever reads the returned file.

    Raises:
        OSError: the kernel has no seccomp (or, for the broker, no notifications), or its architecture is unknown.
    """
    rules = [*_sockets(), *_dangers()]
    if not broker:
        seccomp.install(_filter(rules))
        return None
    steps = _filter([*rules, Rule("connect", _NOTIFY), Rule("listen", _NOTIFY)])
    try:  # Linux 5.19: a signal that comes while the broker is at work does not make the call start again
        return seccomp.install(steps, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return seccomp.install(steps, _NEW_LISTENER)


def _filter(rules: list[Rule]) -> list[Step]:
    steps: list[Step] = [(_JUMP_IF_AT_LEAST, 0, 1, _X32), (RETURN, 0, 0, KILL)]
    for call in dict.fromkeys(rule.call for rule in rules):
        block = [step for rule in rules if rule.call == call for step in _rule_steps(rule)] + [(RETURN, 0, 0, ALLOW)]
        steps += [(JUMP_IF_EQUAL, 0, len(block), number_of(call)), *block]
    return [*steps, (RETURN, 0, 0, ALLOW)]


def _rule_steps(rule: Rule) -> list[Step]:
    steps: list[Step] = [(RETURN, 0, 0, rule.becomes)]
    for condition in reversed(rule.where):
        steps = [*condition.steps(len(steps)), *steps]
    return steps
