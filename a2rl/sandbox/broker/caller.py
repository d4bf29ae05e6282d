"""The caller of a brokered system call: its arguments, its memory, and which processes belong to the agent.

Contract: the caller's memory is read once, and only the copy is used. File descriptors and process ids are those of the
caller, as it sees them. Before the broker acts on anything that it read from /proc/<thread>, it makes sure that the
caller still waits. Otherwise the thread id might have been reused, and the data might be another process's.
Source: the manual's seccomp_unotify(2).
"""

import ctypes
import errno
import os
import platform
import struct
import threading
from pathlib import Path
from typing import NamedTuple

LIBC = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_CAPSET = {"x86_64": 126, "aarch64": 91}
_SETGROUPS, _SETFSUID, _SETFSGID = ({"x86_64": x, "aarch64": arm} for x, arm in ((116, 159), (122, 151), (123, 152)))
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_PTRACE, _CAP_SYS_NICE = 1 << 19, 1 << 23
MAX_PATH = 4096


class Call(NamedTuple):
    """A system call that waits for an answer."""

    id: int
    thread: int
    number: int
    arguments: tuple[int, ...]

    def signed(self, argument: int) -> int:
        """Returns an argument as a C `int`."""
        return ctypes.c_int(self.arguments[argument] & 0xFFFFFFFF).value

    def unsigned(self, argument: int) -> int:
        """Returns an argument as a C `unsigned int`."""
        return self.arguments[argument] & 0xFFFFFFFF

    def memory(self, pointer: int, length: int) -> bytes:
        """Reads up to `length` bytes of the caller's memory; returns fewer if the mapped memory ends before that.

        Raises:
            OSError: EFAULT: there is no memory at this address.
        """
        if not 0 < pointer < 1 << 63:
            raise OSError(errno.EFAULT, "no such memory")
        memory = os.open(b"/proc/%d/mem" % self.thread, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(memory, length, pointer)
        except OSError as error:
            raise OSError(errno.EFAULT, "no such memory") from error
        finally:
            os.close(memory)

    def structure(self, pointer: int, length: int) -> bytes:
        """Reads exactly `length` bytes of the caller's memory.

        Raises:
            OSError: EFAULT: there are fewer.
        """
        found = self.memory(pointer, length)
        if len(found) < length:
            raise OSError(errno.EFAULT, "no such memory")
        return found

    def text(self, pointer: int, limit: int = MAX_PATH) -> bytes:
        """Reads a null-terminated string from the caller's memory; returns it without the null byte.

        Raises:
            OSError: ENAMETOOLONG or EFAULT: the string does not end within `limit` bytes, or within the memory.
        """
        found, end, _ = self.memory(pointer, limit).partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG if len(found) == limit else errno.EFAULT, "no end of a string")
        return found

    def file(self, number: int) -> int:
        """Duplicates a file descriptor of the caller, so that both share the open file; close it after use."""
        process = os.pidfd_open(process_of(self.thread))
        try:
            return check(LIBC.syscall(_PIDFD_GETFD, process, ctypes.c_int(number), 0))
        finally:
            os.close(process)


def check(result: int) -> int:
    """Returns the result of a C function; raises OSError with its errno if the result is negative."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def process_of(thread: int) -> int:
    """Returns the process that a thread belongs to."""
    return int(_status(thread)[b"Tgid"])


def is_agents(process: int) -> bool:
    """Whether a process descends from this one.

    The supervisor's only children are the agent and orphaned processes that the agent started.
    """
    own = os.getpid()
    while process > 1:
        process = int(_status(process)[b"PPid"])
        if process == own:
            return True
    return False


def has_own_processes(thread: int) -> bool:
    """Whether the caller has its own process table, in which all processes are the agent's."""
    return os.readlink(f"/proc/{thread}/ns/pid") != os.readlink("/proc/self/ns/pid")  # noqa: PTH115


def thread_of(call: Call, number: int) -> int:
    """Translates a thread id from the caller's process table to ours; 0 means the caller itself.

    Raises:
        ProcessLookupError: The caller has no such thread.
        PermissionError: The thread does not belong to the agent.
    """
    if number == 0:
        return call.thread
    if has_own_processes(call.thread):
        for name in os.listdir(f"/proc/{call.thread}/task"):  # noqa: PTH208
            if int(_status(int(name))[b"NSpid"].split()[-1]) == number:
                return int(name)
        raise ProcessLookupError(errno.ESRCH, "no such thread of the caller")
    if number < 0 or not is_agents(process_of(number)):
        raise PermissionError(errno.EPERM, "not a process of the agent")
    return number


def act_as(thread: int) -> None:
    """Gives the calling thread exactly the file permissions of another thread's user.

    The calling thread keeps the privileges to inspect the agent's processes and to move them between cores, because the
    broker has its own checks for these. Threads that it starts inherit all of this.

    Args:
        thread: The id of the other thread.

    Raises:
        OSError: The permissions cannot be changed.
    """
    status, machine = _status(thread), platform.machine()
    user, group = (int(status[name].split()[3]) for name in (b"Uid", b"Gid"))
    groups = [int(each) for each in status[b"Groups"].split()]
    if sorted(groups) != sorted(os.getgroups()):
        check(LIBC.syscall(_SETGROUPS[machine], len(groups), struct.pack(f"={len(groups)}I", *groups)))
    for call, identity in ((_SETFSGID, group), (_SETFSUID, user)):
        LIBC.syscall(call[machine], ctypes.c_uint(identity))
        if LIBC.syscall(call[machine], ctypes.c_uint(0xFFFFFFFF)) != identity:
            raise OSError(errno.EPERM, "the broker cannot take on the agent's user")
    kept = int(_status(threading.get_native_id())[b"CapPrm"], 16) & (_CAP_SYS_PTRACE | _CAP_SYS_NICE)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    check(LIBC.syscall(_CAPSET[machine], header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)))


def _status(process: int) -> dict[bytes, bytes]:
    try:
        lines = Path(f"/proc/{process}/status").read_bytes().splitlines()
    except FileNotFoundError as error:
        raise ProcessLookupError(errno.ESRCH, "no such process") from error
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
