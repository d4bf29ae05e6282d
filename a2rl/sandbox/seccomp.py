"""seccomp: a process keeps the system calls that computing takes, and loses all others, for good.

Contract: after `only_compute()` the process cannot start processes or threads, execute programs, open sockets, pipes or
anything else but files to read, send signals, look into other processes, or change a file, its rights or its times.
Such a call fails with ENOSYS, as one that the kernel does not know: the C library then goes about it in another way,
where EPERM would be final. A list of what is allowed, and not of what is forbidden, stays right with kernels to come.

What the list does not hold back, Landlock or limits must: which files are opened (`files=False` forbids them all), and
how much time and memory is used. Source: docs.kernel.org/userspace-api/seccomp_filter.html; numbers from the kernel's
syscall tables.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence

from a2rl.sandbox.landlock import PR_SET_NO_NEW_PRIVS, prctl

PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_SECCOMP_CALL, _SET_MODE_FILTER = {"x86_64": 317, "aarch64": 277}, 1
ALLOW, KILL = 0x7FFF0000, 0x80000000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
"""Offsets in what the kernel shows the filter of a call."""

Step = tuple[int, int, int, int]
"""An instruction of a filter: what, how far to jump if it holds, how far if not, with which value."""

_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COMPUTING = {
    "x86_64": (
        (9, 10, 11, 12, 25, 28, 318),  # memory: mmap mprotect munmap brk mremap madvise getrandom
        (202, 24, 204, 309, 218, 273, 334),  # futex sched_yield sched_getaffinity getcpu set_tid set_robust_list rseq
        (0, 1, 3, 5, 8, 17, 19, 20, 436),  # open files: read write close fstat lseek pread readv writev close_range
        (35, 96, 98, 100, 201, 228, 229, 230),  # time: nanosleep to clock_nanosleep
        (34, 36, 37, 38),  # one's own alarms: pause getitimer alarm setitimer
        (13, 14, 15, 127, 128, 130, 131, 219),  # one's own signals: rt_sigaction to sigaltstack, restart_syscall
        (39, 63, 97, 99, 102, 104, 107, 108, 110, 111, 186),  # who one is: getpid uname getrlimit sysinfo getuid ...
        (60, 231),  # exit exit_group
    ),
    "aarch64": (
        (214, 215, 216, 222, 226, 233, 278),
        (98, 99, 96, 123, 124, 168, 293),
        (57, 62, 63, 64, 65, 66, 67, 80, 436),
        (101, 113, 114, 115, 153, 165, 169),
        (102, 103),
        (128, 132, 133, 134, 135, 136, 137, 139),
        (160, 163, 172, 173, 174, 175, 176, 177, 178, 179),
        (93, 94),
    ),
}
_FILES = {
    "x86_64": (2, 257, 4, 6, 262, 332, 21, 269, 439, 89, 267, 217, 79),
    "aarch64": (56, 79, 291, 48, 439, 78, 61, 17),
}
"""To open and look at files: open(at) stat lstat newfstatat statx access faccessat(2) readlink(at) getdents getcwd."""


def is_available() -> bool:
    """Whether this machine has seccomp, and an architecture whose calls we know."""
    if sys.platform != "linux" or platform.machine() not in _AUDIT_ARCHITECTURES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel looks at the filter before anything else: a null pointer is EFAULT where there are filters at all.
    return libc.prctl(PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0) == -1 and ctypes.get_errno() == errno.EFAULT


def only_compute(files: bool) -> None:
    """Gives up every other call.

    Args:
        files: whether files can still be opened.

    Raises:
        OSError: the kernel has no seccomp, or the architecture is none of those that we know.
    """
    machine = supported_machine()
    allowed = [number for group in _COMPUTING[machine] for number in group] + list(_FILES[machine] if files else ())
    install(
        [
            *((JUMP_IF_EQUAL, len(allowed) - place, 0, number) for place, number in enumerate(allowed)),
            (RETURN, 0, 0, refusal(errno.ENOSYS)),
            (RETURN, 0, 0, ALLOW),
        ]
    )


def refusal(error: int) -> int:
    """What a filter returns to make a call fail with this error; 0 makes it do nothing and succeed."""
    return 0x00050000 | error


def supported_machine() -> str:
    """Raises OSError: it is none whose calls we know."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    return machine


def install(steps: Sequence[Step], flags: int = 0) -> int:
    """Binds the calling thread and all that it starts to a filter, for good; a call of another architecture, whose
    numbers mean other calls, kills.

    Args:
        steps: begin with the number of the call loaded, and end with a return.
        flags: of seccomp(2).

    Returns:
        What the kernel returns: a file to answer from, if the flags ask for one.

    Raises:
        OSError: the kernel has no seccomp, or the architecture is none of those that we know.
    """
    machine = supported_machine()
    start = [
        (LOAD, 0, 0, _ARCHITECTURE_AT),
        (JUMP_IF_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER_AT),
    ]
    program = b"".join(struct.pack("HBBI", *step) for step in [*start, *steps])
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(_SECCOMP_CALL[machine], _SET_MODE_FILTER, ctypes.c_uint(flags), header))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp is not to be had: {os.strerror(error)}")
    return result
