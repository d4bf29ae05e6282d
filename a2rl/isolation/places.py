"""Which file an agent means, where it lies, and whether it is the agent's.

Contract: a file is opened as a place only (O_PATH), from where the caller stands and in the file system that the caller
sees; then the kernel says where that is. What is done next is done to the open file: wherever names and links lead
meanwhile, it stays the same one. The thread that opens it has the rights of the agent's user (`caller.act_as`).

Without a file system of its own the caller's names are ours, except for /proc/self. With one (bwrap, or a mount
namespace) names are resolved below its root, as openat2(2) does it, and links of /proc lead nowhere.
"""

import ctypes
import errno
import os
import re
import struct
from collections.abc import Iterable

from a2rl.isolation.caller import LIBC, Call, check

AT_FDCWD = -100
_OPENAT2, _RESOLVE_IN_ROOT = 437, 0x10
_STANDARD = {b"in": 0, b"out": 1, b"err": 2}
_OWN_LINK = re.compile(
    rb"(?:/proc/(?:self|thread-self)/(?:(?P<at>cwd|root)|fd/(?P<fd>\d+))|/dev/fd/(?P<dev>\d+)|/dev/std(?P<std>in|out|err))"
    rb"(?:/+(?P<rest>.*))?",
    re.DOTALL,
)
"""What means the caller itself, by the names that there are for that."""
_ITSELF = re.compile(rb"/proc/(self|thread-self)(?=/|$)")
_PLACE = os.O_PATH | os.O_CLOEXEC
NOBODY_WATCHES = (b"/proc", b"/sys", b"/dev")
"""What happens there tells of others' work."""


class Places:
    """The folders of one agent, seen as it sees them."""

    def __init__(self, own: Iterable[str], readable: Iterable[str]) -> None:
        """
        Args:
            own: folders that are the agent's to change.
            readable: files and folders that it may read besides.
        """
        self._own_paths, self._readable = tuple(own), [os.path.realpath(path).encode() for path in readable]
        self._root: int | None = None
        """Of a file system that is not ours."""
        self._own: list[tuple[bytes, int]] = []
        """Where the own folders lie, with the number of their file system: two of them may know the same name."""

    def see_as(self, thread: int) -> None:
        """From now on names mean what they mean to this one, and to all of the agent's: none can change its root."""
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
        """The file of this name, from a folder that the caller has open or AT_FDCWD; to be closed."""
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
        """What the caller has open under this number, as a place; to be closed."""
        place = b"/proc/%d/cwd" % call.thread if number == AT_FDCWD else b"/proc/%d/fd/%d" % (call.thread, number)
        try:
            return os.open(place, _PLACE)
        except FileNotFoundError as error:
            raise OSError(errno.EBADF, "no such file is open") from error

    def is_own(self, opened: int) -> bool:
        """In a folder of the agent's; or nowhere at all any more (or ever), so that it has it to itself."""
        where, status = _where(opened), os.fstat(opened)
        if any(status.st_dev == device and _is_below(where, folder) for folder, device in self._own):
            return True
        return status.st_nlink == 0 and where.endswith(b" (deleted)")

    def may_read(self, opened: int) -> bool:
        where = _where(opened)
        if any(_is_below(where, folder) for folder in NOBODY_WATCHES):
            return False
        return self.is_own(opened) or any(_is_below(where, folder) for folder in self._readable)

    def _open(self, path: bytes, flags: int) -> int:
        """By its whole path."""
        if self._root is None:
            return os.open(path, flags)
        how = struct.pack("=3Q", flags, 0, _RESOLVE_IN_ROOT)
        return check(LIBC.syscall(_OPENAT2, self._root, path, how, ctypes.c_size_t(len(how))))


def _where(opened: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % opened)  # noqa: PTH115


def _is_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")
