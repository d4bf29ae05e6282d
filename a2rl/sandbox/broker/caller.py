"""The caller of a brokered system call: its arguments and memory, and which processes and files belong to the agent.

Contract: the caller's memory is read once, and only the copy is used. File descriptors and process ids are those of the
caller, as it sees them. Before the broker acts on anything that it read from /proc/<thread>, it makes sure that the
caller still waits. Otherwise the thread id might have been reused, and the data might be another process's.

A file is opened with O_PATH, which neither reads nor changes it. A relative path starts at the caller's folder, and
every path is resolved in the file system that the caller sees. The kernel then reports where the open file is. All
further steps use the open file: if names or links change in the meantime, it is still the same file. The thread that
opens it has the file permissions of the agent's user (`act_as`).

If the agent shares our file system, its paths mean the same as ours, except for /proc/self. If it has its own file
system (bwrap, or a mount namespace), paths are resolved below its root. In both, openat2(2) follows no special links of
/proc: with our rights, they would lead to what any process has open, even to files without a name.
Source: the manual's seccomp_unotify(2).
"""

import ctypes
import errno
import os
import platform
import re
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from a2rl.linux.landlock import LIBC, check
from a2rl.linux.untrusted_folder import openat2
from a2rl.sandbox.namespaces import set_capabilities

_PIDFD_GETFD = 438
_SETGROUPS, _SETFSUID, _SETFSGID = ({"x86_64": x, "aarch64": arm} for x, arm in ((116, 159), (122, 151), (123, 152)))
_CAP_SYS_PTRACE, _CAP_SYS_NICE = 1 << 19, 1 << 23
MAX_PATH = 4096
AT_FDCWD = -100
_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_STANDARD = {b"in": 0, b"out": 1, b"err": 2}
_OWN_LINK = re.compile(
    rb"(?:/proc/(?:self|thread-self)/(?:(?P<at>cwd|root)|fd/(?P<fd>\d+))|/dev/fd/(?P<dev>\d+)|/dev/std(?P<std>in|out|err))"
    rb"(?:/+(?P<rest>.*))?",
    re.DOTALL,
)
"""Paths that refer to the caller's own folders and open files."""
_ITSELF = re.compile(rb"/proc/(self|thread-self)(?=/|$)")
_PLACE = os.O_PATH | os.O_CLOEXEC
UNWATCHABLE = (b"/proc", b"/sys", b"/dev")
"""Events on files in these folders would reveal what other processes do."""


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
        return duplicate(process_of(self.thread), number)


def duplicate(process: int, number: int) -> int:
    """Duplicates a file descriptor of a process, so that both share the open file; close it after use."""
    opened = os.pidfd_open(process)
    try:
        return check(LIBC.syscall(_PIDFD_GETFD, opened, ctypes.c_int(number), 0))
    finally:
        os.close(opened)


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
    set_capabilities(kept)


def _status(process: int) -> dict[bytes, bytes]:
    try:
        lines = Path(f"/proc/{process}/status").read_bytes().splitlines()
    except FileNotFoundError as error:
        raise ProcessLookupError(errno.ESRCH, "no such process") from error
    return {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}


class AgentFiles:
    """The files and folders of one agent, with paths as the agent sees them."""

    def __init__(self, own: Iterable[str], readable: Iterable[str]) -> None:
        """Remembers the folders.

        Args:
            own: Folders that belong to the agent, in which it may change files.
            readable: Further files and folders that it may read.
        """
        self._own_paths, self._readable = tuple(own), [os.path.realpath(path).encode() for path in readable]
        self._root: int | None = None
        """The root of the agent's file system; None if the agent shares ours."""
        self._own: list[tuple[bytes, int]] = []
        """The agent's own folders: path and device number. The same path may exist in two file systems."""

    def see_as(self, thread: int) -> None:
        """Resolves paths as this thread sees them from now on.

        All of the agent's processes see the same file system, because none of them can change its root.
        """
        if os.readlink(f"/proc/{thread}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):  # noqa: PTH115
            self._root = os.open(f"/proc/{thread}/root", _PLACE | os.O_DIRECTORY)
        for folder in self._own_paths:
            try:
                opened = self._open(os.fsencode(folder), _PLACE | os.O_DIRECTORY)
            except OSError:
                continue
            self._own.append((_where(opened), os.fstat(opened).st_dev))
            os.close(opened)

    def named(self, call: Call, folder: int, name: bytes, follow: bool = True) -> int:
        """Opens the file at a path with O_PATH; close it after use.

        Args:
            call: The system call that names the file.
            folder: The caller's file descriptor of the folder that the path starts from, or AT_FDCWD.
            follow: Whether to follow a link at the end of the path.

        Raises:
            OSError: The file does not exist, or the agent's user may not access it.
        """
        if not name:
            raise OSError(errno.ENOENT, "no name")
        if (found := _OWN_LINK.fullmatch(name)) and (follow or found["rest"]):
            return self._through_a_link(call, found, follow)
        flags = _PLACE if follow else _PLACE | os.O_NOFOLLOW
        if name.startswith(b"/"):
            return self._open(_ITSELF.sub(b"/proc/%d" % call.thread, name), flags)
        start = b"/proc/%d/cwd" % call.thread if folder == AT_FDCWD else b"/proc/%d/fd/%d" % (call.thread, folder)
        if self._root is None:
            here = os.open(start, _PLACE)
            try:
                return openat2(here, name, flags, _NO_MAGICLINKS)
            finally:
                os.close(here)
        return self._open(os.readlink(start) + b"/" + name, flags)  # noqa: PTH115

    def _through_a_link(self, call: Call, link: re.Match[bytes], follow: bool) -> int:
        rest = link["rest"] or b""
        if link["at"] == b"root":
            return self.named(call, AT_FDCWD, b"/" + rest, follow)
        number = link["fd"] or link["dev"] or _STANDARD.get(link["std"], AT_FDCWD)
        return self.named(call, int(number), rest, follow) if rest else self.open_file(call, int(number))

    def open_file(self, call: Call, number: int) -> int:
        """Opens a file with O_PATH by the caller's file descriptor, or the caller's folder for AT_FDCWD.

        Close the result after use.

        Raises:
            OSError: EBADF: the caller has no such file open.
        """
        place = b"/proc/%d/cwd" % call.thread if number == AT_FDCWD else b"/proc/%d/fd/%d" % (call.thread, number)
        try:
            return os.open(place, _PLACE)
        except FileNotFoundError as error:
            raise OSError(errno.EBADF, "no such file is open") from error

    def is_own(self, opened: int) -> bool:
        """Whether a file belongs to the agent.

        It does if it is in one of the agent's folders. It also does if it has no name, because it was removed or never
        had one: then only processes that have it open can access it, and the caller can name only its own.
        """
        where, status = _where(opened), os.fstat(opened)
        if any(status.st_dev == device and _is_below(where, folder) for folder, device in self._own):
            return True
        return status.st_nlink == 0 and where.endswith(b" (deleted)")

    def may_read(self, opened: int) -> bool:
        """Whether the agent may read this file."""
        where = _where(opened)
        if any(_is_below(where, folder) for folder in UNWATCHABLE):
            return False
        return self.is_own(opened) or any(_is_below(where, folder) for folder in self._readable)

    def _open(self, path: bytes, flags: int) -> int:
        """Opens an absolute path in the agent's file system."""
        if self._root is None:
            return openat2(AT_FDCWD, path, flags, _NO_MAGICLINKS)
        return openat2(self._root, path, flags, _RESOLVE_IN_ROOT)


def _where(opened: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % opened)  # noqa: PTH115


def _is_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")
