"""seccomp filters: a process permanently gives up the system calls that it does not need.

Contract: after `allow_computation_only()`, the process cannot start processes or threads, execute programs, open
sockets or pipes, write files, change their permissions or times, send signals, or inspect other processes. A forbidden
call fails with ENOSYS, as if the kernel did not know it: the C library then tries a fallback, whereas it would treat
EPERM as final. The filter lists what is allowed, not what is forbidden, so that calls of future kernels are denied too.

Landlock and resource limits must restrict the rest: which files are opened (`files=False` forbids opening any), and how
much time and memory is used.

No library: the filters are a few dozen lines of BPF, and libseccomp's Python bindings are not on PyPI and would have to
be imported in processes that load the standard library only.
Source: docs.kernel.org/userspace-api/seccomp_filter.html; call numbers from the kernel's syscall tables.
"""

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Sequence

from a2rl.linux.landlock import LIBC, PR_SET_NO_NEW_PRIVS, check, prctl

PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_SECCOMP_CALL, _SET_MODE_FILTER = {"x86_64": 317, "aarch64": 277}, 1
ALLOW, KILL = 0x7FFF0000, 0x80000000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
"""Offsets in `struct seccomp_data`, the kernel's description of a call."""

Instruction = tuple[int, int, int, int]
"""A BPF instruction: code, jump distance if true, jump distance if false, operand."""

_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COMPUTING = {
    "x86_64": (
        (9, 10, 11, 12, 25, 28, 318),  # memory: mmap mprotect munmap brk mremap madvise getrandom
        (202, 24, 204, 309, 218, 273, 334),  # futex sched_yield sched_getaffinity getcpu set_tid set_robust_list rseq
        (0, 1, 3, 5, 8, 17, 19, 20, 436),  # open files: read write close fstat lseek pread readv writev close_range
        (35, 96, 98, 100, 201, 228, 229, 230),  # time: nanosleep to clock_nanosleep
        (34, 36, 37, 38),  # its own alarms: pause getitimer alarm setitimer
        (13, 14, 15, 127, 128, 130, 131, 219),  # its own signals: rt_sigaction to sigaltstack, restart_syscall
        (39, 63, 97, 99, 102, 104, 107, 108, 110, 111, 186),  # its identity: getpid uname getrlimit sysinfo getuid ...
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
"""Calls that open and examine files: open(at) stat lstat newfstatat statx access faccessat(2) readlink(at) getdents
getcwd."""


_SOCKETS = {"x86_64": (41, 425), "aarch64": (198, 425)}
"""Calls that make sockets: socket, and io_uring_setup, whose rings can do the same."""
_X32, _JUMP_IF_AT_LEAST = 0x40000000, 0x35
"""Call numbers from here on belong to x32, a second call table of x86_64."""


def is_available() -> bool:
    """Whether the kernel has seccomp, and the architecture is one with a known call table."""
    if sys.platform != "linux" or platform.machine() not in _AUDIT_ARCHITECTURES:
        return False
    # The kernel reads the filter before anything else: a null pointer gives EFAULT if it supports filters at all.
    return bool(LIBC.prctl(PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0) == -1 and ctypes.get_errno() == errno.EFAULT)


def allow_computation_only(files: bool) -> None:
    """Gives up all system calls that computing does not need.

    Args:
        files: Whether files can still be opened and read.

    Raises:
        OSError: The kernel has no seccomp, or the architecture is not supported.
    """
    machine = supported_machine()
    allowed = [number for group in _COMPUTING[machine] for number in group] + list(_FILES[machine] if files else ())
    install_filter(
        [
            *((JUMP_IF_EQUAL, len(allowed) - place, 0, number) for place, number in enumerate(allowed)),
            (RETURN, 0, 0, fail_with(errno.ENOSYS)),
            (RETURN, 0, 0, ALLOW),
        ]
    )


def refuse_sockets() -> None:
    """Gives up making sockets, and with them the network.

    Raises:
        OSError: The kernel has no seccomp, or the architecture is not supported.
    """
    calls = _SOCKETS[supported_machine()]
    install_filter(
        [
            (_JUMP_IF_AT_LEAST, len(calls) + 1, 0, _X32),
            *((JUMP_IF_EQUAL, len(calls) - place, 0, number) for place, number in enumerate(calls)),
            (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, fail_with(errno.EACCES)),
        ]
    )


def fail_with(error: int) -> int:
    """Returns the filter result that makes a call fail with this errno; with 0, it does nothing and succeeds."""
    return 0x00050000 | error


def supported_machine() -> str:
    """Returns the name of this architecture.

    Raises:
        OSError: It is not supported.
    """
    machine = platform.machine()
    if machine not in _AUDIT_ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    return machine


def install_filter(steps: Sequence[Instruction], flags: int = 0) -> int:
    """Permanently applies a filter to the calling thread and its future children.

    A call of another architecture, whose numbers mean other calls, kills the process.

    Args:
        steps: The program; it starts with the call number loaded, and ends with a return.

    Returns:
        The kernel's result: the listener's file descriptor, if the flags ask for one.

    Raises:
        OSError: The kernel has no seccomp, or the architecture is not supported.
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
    result = LIBC.syscall(_SECCOMP_CALL[machine], _SET_MODE_FILTER, ctypes.c_uint(flags), header)
    return check(result, "seccomp is unavailable")
