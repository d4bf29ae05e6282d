"""The rules for an agent's system calls, as tables, and the seccomp filter that enforces them.

Every call up to Linux 6.18 was reviewed once and is in one of these classes:
- REFUSED: calls that administer the machine, its mounts, keys or logs, or that report events on files by name
  (fanotify); they fail with EPERM;
- HIDDEN: calls that programs have a fallback for or do without; they fail as if the kernel did not know them (ENOSYS);
- BROKERED: calls whose arguments the broker checks, and which it then performs (broker/server.py): connections,
  servers, watches on files, the metadata of files, and the cores on which a process runs;
- CONDITIONAL: calls of which some arguments are refused or brokered, by the rules below;
- all others are allowed: they affect only the agent itself, or Landlock (files, signals, tracing) or missing privileges
  limit what they can do;
- a call number above NEWEST, which only a future kernel can know, fails with ENOSYS.

After `install_agent_filter`, the process can create only TCP sockets, local stream sockets, local datagram sockets that
only receive, and the socket for listing network interfaces. No connection bypasses Landlock or the broker, as TCP Fast
Open and io_uring would. With `broker=True`, the calls in BROKERED are passed to the reader of the returned file
descriptor.

Source: the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl, scripts/syscall.tbl), section 2 of the manual, and
docs.kernel.org/userspace-api/seccomp_filter.html.
"""

import errno
import resource
from collections.abc import Iterator
from typing import NamedTuple

from a2rl.linux import seccomp
from a2rl.linux.seccomp import ALLOW, JUMP_IF_EQUAL, KILL, LOAD, RETURN, Instruction, fail_with

NEWEST = 469
"""The number of file_setattr (Linux 6.17). From 424 on, numbers are the same on all architectures."""
NOTIFY = 0x7FC00000

REFUSED = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "mount_setattr": (442, 442), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "setns": (308, 268),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116), "vhangup": (153, 58),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, None), "ioperm": (173, None),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "process_madvise": (440, 440),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "open_by_handle_at": (304, 265),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
}  # fmt: skip
"""Numbers on x86_64 and aarch64; None: the architecture does not have the call."""
HIDDEN = {
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    "fchmodat2": (452, 452), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "name_to_handle_at": (303, 264), "statmount": (457, 457), "listmount": (458, 458), "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447), "modify_ldt": (154, None), "uselib": (134, None), "uretprobe": (335, None),
    "uprobe": (336, None), "nfsservctl": (180, 42),
}  # fmt: skip
METADATA = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
"""Calls that Landlock does not cover: without the broker, the agent could change the modes and times of all files of
its user, wherever they are, even through a file descriptor that is open only for reading."""
ATTRIBUTES = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
"""Calls on extended attributes, which Landlock does not cover either: a user who may write to a file may change
them."""
BROKERED = {
    **METADATA, **ATTRIBUTES,
    "connect": (42, 203), "listen": (50, 201), "inotify_add_watch": (254, 27), "sched_setaffinity": (203, 122),
}  # fmt: skip
CONDITIONAL = {
    "clone": (56, 220), "unshare": (272, 97), "socket": (41, 198), "socketpair": (53, 199), "sendto": (44, 206),
    "sendmsg": (46, 211), "sendmmsg": (307, 269), "setsockopt": (54, 208), "prctl": (157, 167), "seccomp": (317, 277),
    "prlimit64": (302, 261), "ioctl": (16, 29), "fcntl": (72, 25), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
NUMBERS: dict[str, tuple[int, int | None]] = {**REFUSED, **HIDDEN, **BROKERED, **CONDITIONAL}

_AND, _JUMP_IF_SET, _JUMP_IF_AT_LEAST = 0x54, 0x45, 0x35
_NEW_LISTENER = 1 << 3
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _SEQPACKET, _SOCKET_TYPES = 1, 2, 5, 0xF
_TCP, _TCP_FASTOPEN_CONNECT, _TCP_ULP, _MSG_FASTOPEN = 6, 30, 31, 0x20000000
_NAMESPACES = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80
"""For `unshare`; in the flags of `clone` this bit is part of a signal's number."""
_PR_SET_DUMPABLE, _PR_SCHED_CORE = 4, 62
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY = 8, 10, 15, 1024, 1026
_F_SET_RW_HINT, _F_SET_FILE_RW_HINT, _F_NEWER = 1036, 1038, 1039
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_FILE_SYSTEMS = (0x6600, 0x5800, 0x9400, 0xF500, 0xBC00)
"""The types of ioctl requests of ext4 and others, XFS and others, btrfs and others, f2fs, and bcachefs. With some of
them, an open folder is enough to create subvolumes in it. With others, an open file is enough to change its flags, its
encryption key, or its project, which decides whose disk quota it counts towards."""
_HARMLESS_THERE = (0x80086601, 0x80046601, 0xC020660B, 0x801C581F, 0x40049409, 0x4020940D, 0xC0189436)
"""Harmless requests of these types: they read flags (two requests), extents and attributes, or share blocks between
files, for which the caller must have opened both."""
_VERSION_OF_A_FILE = (0x40087602, 0x40047602, 0x40047211)
"""Requests that set the version of a file (two requests), or the attributes of a FAT file."""
_PROCESS = {"setpriority": 0, "ioprio_set": 1}
"""The value of the call's `which` argument that means a single process; other values mean groups and users."""
_LOW = 0xFFFFFFFF
_MACHINES = ("x86_64", "aarch64")
_X32 = 0x40000000
"""Call numbers from here on belong to x32, a second call table of x86_64."""
_WAIT_KILLABLE = 1 << 5


class Condition(NamedTuple):
    """A condition on one argument: the bits in `mask` equal `value`, or with `any_bit`, some bit of `value` is set."""

    argument: int
    value: int
    mask: int = _LOW
    any_bit: bool = False
    high: bool = False
    """Whether to test the upper 32 bits of the argument instead of the lower."""
    at_least: bool = False
    """Whether the condition is instead that the argument is `value` or more."""

    def steps(self, otherwise: int) -> list[Instruction]:
        """Returns instructions that test the condition, and skip the next `otherwise` instructions if it is false."""
        load = (LOAD, 0, 0, 16 + 8 * self.argument + 4 * self.high)
        if self.any_bit:
            return [load, (_JUMP_IF_SET, 0, otherwise, self.value)]
        if self.at_least:
            return [load, (_JUMP_IF_AT_LEAST, 0, otherwise, self.value)]
        return [load, (_AND, 0, 0, self.mask), (JUMP_IF_EQUAL, 0, otherwise, self.value)]


class Rule(NamedTuple):
    """The result of a call if all conditions in `where` hold.

    The first rule of a call that matches decides. If none matches, the call is allowed.
    """

    call: str
    becomes: int
    where: tuple[Condition, ...] = ()


def rules(broker: bool, metadata: bool = True) -> list[Rule]:
    """Returns all rules.

    Args:
        broker: Whether there is a broker. Without one, only Landlock restricts connections, nothing restricts changes
            to the metadata of files, and all other brokered calls fail with EPERM.
        metadata: Whether calls that change modes, owners and times of files go to the broker as well.
    """
    elsewhere = NOTIFY if broker else fail_with(errno.EPERM)
    brokered = [call for call in BROKERED if metadata or call not in METADATA]
    return [
        *(Rule(call, fail_with(errno.EPERM)) for call in REFUSED),
        *(Rule(call, fail_with(errno.ENOSYS)) for call in HIDDEN),
        *_sockets(broker), *_processes(), *_files(), *_others(elsewhere),
        *(Rule(call, elsewhere) for call in (brokered if broker else ("inotify_add_watch", "sched_setaffinity"))),
    ]  # fmt: skip


def _sockets(broker: bool) -> Iterator[Rule]:
    for kind in (_STREAM, _SEQPACKET):
        yield Rule("socket", ALLOW, (Condition(0, _UNIX), Condition(1, kind, _SOCKET_TYPES)))
        yield Rule("socketpair", ALLOW, (Condition(1, kind, _SOCKET_TYPES),))
    # A datagram can go to any address, connected or not, and the address is in memory, which no filter sees. The broker
    # makes such sockets, and they can only receive. NCCL opens one for each communicator.
    if broker:
        yield Rule("socket", NOTIFY, (Condition(0, _UNIX), Condition(1, _DATAGRAM, _SOCKET_TYPES)))
    for family in (_INET, _INET6):
        for protocol in (0, _TCP):
            yield Rule(
                "socket", ALLOW, (Condition(0, family), Condition(1, _STREAM, _SOCKET_TYPES), Condition(2, protocol))
            )
    yield Rule("socket", ALLOW, (Condition(0, _NETLINK), Condition(2, 0)))
    for family in (_UNIX, _INET, _INET6, _NETLINK):
        yield Rule("socket", fail_with(errno.EACCES), (Condition(0, family),))
    yield Rule("socket", fail_with(errno.EAFNOSUPPORT))
    yield Rule("socketpair", fail_with(errno.EACCES))  # likewise
    for call, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        yield Rule(call, fail_with(errno.EOPNOTSUPP), (Condition(flags, _MSG_FASTOPEN, any_bit=True),))
    for option in (_TCP_FASTOPEN_CONNECT, _TCP_ULP):  # the latter turns it into another kind of socket
        yield Rule("setsockopt", fail_with(errno.ENOPROTOOPT), (Condition(1, _TCP), Condition(2, option)))


def _processes() -> Iterator[Rule]:
    yield Rule("clone", fail_with(errno.EPERM), (Condition(0, _NAMESPACES, any_bit=True),))
    yield Rule("unshare", fail_with(errno.EPERM), (Condition(0, _NAMESPACES | _NEW_TIME_NAMESPACE, any_bit=True),))
    # The agent must not install a filter with its own listener, which would then get calls instead of the broker.
    yield Rule("seccomp", fail_with(errno.EBUSY), (Condition(1, _NEW_LISTENER, any_bit=True),))
    # A process that other processes of its user cannot inspect could not connect either, because the broker cannot
    # inspect it. The call therefore does nothing and succeeds. This costs no protection: other users cannot inspect the
    # process anyway, and all of the agent's processes know the same.
    yield Rule("prctl", fail_with(0), (Condition(0, _PR_SET_DUMPABLE),))
    # Core scheduling would keep other processes, such as the grader, off the cores that the agent uses.
    yield Rule("prctl", fail_with(errno.EPERM), (Condition(0, _PR_SCHED_CORE),))


def _files() -> Iterator[Rule]:
    # A lease delays every process that opens the file. Notifications reveal what other processes do, and the signals
    # that come with them can be sent to other processes.
    for command in (_F_SETLEASE, _F_NOTIFY, _F_SETOWN, _F_SETOWN_EX, _F_SETSIG):
        yield Rule("fcntl", fail_with(errno.EPERM), (Condition(1, command),))
    for command in (_F_SET_RW_HINT, _F_SET_FILE_RW_HINT):
        yield Rule("fcntl", fail_with(errno.EINVAL), (Condition(1, command),))
    yield Rule("fcntl", fail_with(errno.EINVAL), (Condition(1, _F_NEWER, at_least=True),))
    for request in (_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP):
        yield Rule("ioctl", fail_with(errno.EPERM), (Condition(1, request),))
    for request in _HARMLESS_THERE:
        yield Rule("ioctl", ALLOW, (Condition(1, request),))
    for request in _VERSION_OF_A_FILE:
        yield Rule("ioctl", fail_with(errno.ENOTTY), (Condition(1, request),))
    for kind in _FILE_SYSTEMS:
        yield Rule("ioctl", fail_with(errno.ENOTTY), (Condition(1, kind, 0xFF00),))


def _others(elsewhere: int) -> Iterator[Rule]:
    """Yields the rules for calls that name a process: the caller itself (0) is allowed.

    Args:
        elsewhere: The result of a call that names another process.
    """
    for call, process in _PROCESS.items():
        yield Rule(call, ALLOW, (Condition(0, process), Condition(1, 0)))
        yield Rule(call, elsewhere, (Condition(0, process),))
        yield Rule(call, fail_with(errno.EPERM))
    for call in ("sched_setparam", "sched_setscheduler", "sched_setattr"):
        yield Rule(call, ALLOW, (Condition(0, 0),))
        yield Rule(call, elsewhere)
    yield Rule("prlimit64", ALLOW, (Condition(0, 0),))
    for high in (False, True):  # the pointer to new limits is not null: the call changes limits
        yield Rule("prlimit64", elsewhere, (Condition(2, _LOW, any_bit=True, high=high),))
    for call in ("migrate_pages", "move_pages"):
        yield Rule(call, ALLOW, (Condition(0, 0),))
        yield Rule(call, fail_with(errno.EPERM))


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
