"""Who asks the broker: the thread that waits in a system call, what it hands over, and which processes are the agent's.

Contract: what is in the caller's memory is read once, and the copy is used; a number (of a file, of a process) is the
caller's own. Before anything is done, `Broker` makes sure that the caller still waits, so that what was read under its
number in /proc is its. Source: the manual's seccomp_unotify(2).
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
        """As a C `int`."""
        return ctypes.c_int(self.arguments[argument] & 0xFFFFFFFF).value

    def unsigned(self, argument: int) -> int:
        """As a C `unsigned int`."""
        return self.arguments[argument] & 0xFFFFFFFF

    def memory(self, pointer: int, length: int) -> bytes:
        """So much of the caller's memory, or what there is of it."""
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
        """So much and no less."""
        found = self.memory(pointer, length)
        if len(found) < length:
            raise OSError(errno.EFAULT, "no such memory")
        return found

    def text(self, pointer: int, limit: int = MAX_PATH) -> bytes:
        """A string, without its end."""
        found, end, _ = self.memory(pointer, limit).partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG if len(found) == limit else errno.EFAULT, "no end of a string")
        return found

    def file(self, number: int) -> int:
        """The very file that the caller has open, shared with it; to be closed."""
        process = os.pidfd_open(process_of(self.thread))
        try:
            return check(LIBC.syscall(_PIDFD_GETFD, process, ctypes.c_int(number), 0))
        finally:
            os.close(process)


def check(result: int) -> int:
    """What a function of C returns. Raises OSError if it failed."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def process_of(thread: int) -> int:
    return int(_status(thread)[b"Tgid"])


def is_agents(process: int) -> bool:
    """Whether it descends from this one: a supervisor has no other children than the agent, and what that left."""
    own = os.getpid()
    while process > 1:
        process = int(_status(process)[b"PPid"])
        if process == own:
            return True
    return False


def has_own_processes(thread: int) -> bool:
    """Whether its table of processes is another than ours: all that it can name is the agent's then."""
    return os.readlink(f"/proc/{thread}/ns/pid") != os.readlink("/proc/self/ns/pid")  # noqa: PTH115


def thread_of(call: Call, number: int) -> int:
    """The number that we know one of the agent's threads by; 0: the caller. Raises ProcessLookupError: it has not got
    it; PermissionError: it is not the agent's."""
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
    """From now on the calling thread does with files what that one's user may do, and no more, whoever runs this.

    It keeps the right to look into the agent's processes and to move them between cores, for which it has checks of its
    own. Threads that it starts are the same. Raises OSError: that user's rights cannot be taken on.
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
