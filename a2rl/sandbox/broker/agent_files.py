"""Finds the file that an agent's system call names, and whether that file belongs to the agent.

Contract: a file is opened with O_PATH, which neither reads nor changes it. A relative path starts at the caller's
folder, and every path is resolved in the file system that the caller sees. The kernel then reports where the open file
is. All further steps use the open file: if names or links change in the meantime, it is still the same file. The thread
that opens it has the file permissions of the agent's user (`caller.act_as`).

If the agent shares our file system, its paths mean the same as ours, except for /proc/self. If it has its own file
system (bwrap, or a mount namespace), paths are resolved below its root with openat2(2), and the special links in /proc
do not work.
"""

import ctypes
import errno
import os
import re
import struct
from collections.abc import Iterable

from a2rl.sandbox.broker.caller import LIBC, Call, check

AT_FDCWD = -100
_OPENAT2, _RESOLVE_IN_ROOT = 437, 0x10
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
            name: The path.
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
            return os.open(start + b"/" + name, flags)
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
        had one: then only processes that have it open can access it.
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
            return os.open(path, flags)
        how = struct.pack("=3Q", flags, 0, _RESOLVE_IN_ROOT)
        return check(LIBC.syscall(_OPENAT2, self._root, path, how, ctypes.c_size_t(len(how))))


def _where(opened: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % opened)  # noqa: PTH115


def _is_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")
