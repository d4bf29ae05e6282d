"""Changes the owner, mode, times and attributes of files for an agent, and sets watches on files.

Contract: the broker performs the calls chmod, chown, utime, setxattr, removexattr and their variants on files in the
agent's own folders, with the permissions of the agent's user. Anywhere else they fail with EPERM, even if the agent's
user owns the file or has it open for reading. Watches (inotify) are set on files that the agent may read; on others,
they fail with EACCES.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from a2rl.linux.landlock import LIBC, check
from a2rl.sandbox.broker.caller import AT_FDCWD, AgentFiles, Call

_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = 0x100, 0x1000
_IN_DONT_FOLLOW = 0x02000000
_TIMES = struct.Struct("=4q")
_MAX_NAME, _MAX_VALUE = 256, 1 << 16
"""The kernel's limits for an extended attribute, in bytes."""


class Change(NamedTuple):
    """A system call that changes metadata: which arguments name the file, and how to change it."""

    read: Callable[[Call], Any]
    """Reads the requested value from the arguments and the caller's memory."""
    do: Callable[[int, Any], object]
    """Applies that value to an open file."""
    path: int | None
    """The argument with the path; None: the call has only a file descriptor."""
    folder: int | None = None
    """The argument with the file descriptor of the file, or of the folder that the path starts from."""
    flags: int | None = None
    """The argument with flags."""
    follow: bool = True
    """Whether the call follows a link at the end of the path."""
    may_lack_name: bool = False
    """Whether the path may be a null pointer; the call then changes the file of the file descriptor."""


def _path(opened: int) -> bytes:
    return b"/proc/self/fd/%d" % opened


def _mode(argument: int) -> Callable[[Call], int]:
    return lambda call: call.unsigned(argument) & 0o7777


def _set_mode(opened: int, mode: int) -> None:
    os.chmod(_path(opened), mode)  # noqa: PTH101


def _owner(argument: int) -> Callable[[Call], tuple[int, int]]:
    return lambda call: (call.unsigned(argument), call.unsigned(argument + 1))


def _set_owner(opened: int, owner: tuple[int, int]) -> None:
    check(LIBC.fchownat(opened, b"", *map(ctypes.c_uint, owner), _AT_EMPTY_PATH))


def _times(argument: int, convert: Callable[[bytes], bytes] | None = None, size: int = 32) -> Callable[[Call], Any]:
    """Returns a function that reads two times in seconds and nanoseconds; it returns None for the current time.

    Args:
        convert: Converts the caller's structure to seconds and nanoseconds, if it has another format.
        size: The size of the caller's structure in bytes.
    """

    def read(call: Call) -> bytes | None:
        if not (pointer := call.arguments[argument]):
            return None
        times = call.structure(pointer, size)
        return convert(times) if convert else times

    return read


def _from_seconds(times: bytes) -> bytes:
    accessed, changed = struct.unpack("=2q", times)
    return _TIMES.pack(accessed, 0, changed, 0)


def _from_microseconds(times: bytes) -> bytes:
    accessed, part, changed, other_part = _TIMES.unpack(times)
    if not (0 <= part < 1_000_000 and 0 <= other_part < 1_000_000):
        raise OSError(errno.EINVAL, "no such time")
    return _TIMES.pack(accessed, part * 1000, changed, other_part * 1000)


def _set_times(opened: int, times: bytes | None) -> None:
    check(LIBC.utimensat(opened, b"", times, _AT_EMPTY_PATH))


def _attribute(call: Call) -> bytes:
    try:
        return call.text(call.arguments[1], _MAX_NAME)
    except OSError as error:
        raise OSError(errno.ERANGE if error.errno == errno.ENAMETOOLONG else error.errno, "no name") from error


def _attribute_and_value(call: Call) -> tuple[bytes, bytes, int]:
    value, size = call.arguments[2:4]
    if size > _MAX_VALUE:
        raise OSError(errno.E2BIG, "too large an attribute")
    return _attribute(call), call.structure(value, size) if size else b"", call.signed(4)


def _set_attribute(opened: int, attribute: tuple[bytes, bytes, int]) -> None:
    os.setxattr(_path(opened), *attribute)


def _remove_attribute(opened: int, name: bytes) -> None:
    os.removexattr(_path(opened), name)


CHANGES = {
    "chmod": Change(_mode(1), _set_mode, 0),
    "fchmod": Change(_mode(1), _set_mode, None, 0),
    "fchmodat": Change(_mode(2), _set_mode, 1, 0),
    "chown": Change(_owner(1), _set_owner, 0),
    "lchown": Change(_owner(1), _set_owner, 0, follow=False),
    "fchown": Change(_owner(1), _set_owner, None, 0),
    "fchownat": Change(_owner(2), _set_owner, 1, 0, flags=4),
    "utime": Change(_times(1, _from_seconds, 16), _set_times, 0),
    "utimes": Change(_times(1, _from_microseconds), _set_times, 0),
    "futimesat": Change(_times(2, _from_microseconds), _set_times, 1, 0, may_lack_name=True),
    "utimensat": Change(_times(2), _set_times, 1, 0, flags=3, may_lack_name=True),
    "setxattr": Change(_attribute_and_value, _set_attribute, 0),
    "lsetxattr": Change(_attribute_and_value, _set_attribute, 0, follow=False),
    "fsetxattr": Change(_attribute_and_value, _set_attribute, None, 0),
    "removexattr": Change(_attribute, _remove_attribute, 0),
    "lremovexattr": Change(_attribute, _remove_attribute, 0, follow=False),
    "fremovexattr": Change(_attribute, _remove_attribute, None, 0),
}


def change(places: AgentFiles, asked: Change, call: Call, is_waiting: Callable[[], None]) -> int:
    """Performs a change for the caller.

    Args:
        is_waiting: Raises OSError if the caller no longer waits. If it still waits, everything that was read from
            /proc under its thread id really came from it.

    Raises:
        PermissionError: The file does not belong to the agent.
        OSError: The kernel refuses the change.
    """
    wanted = asked.read(call)
    opened = _meant(places, asked, call)
    try:
        is_waiting()
        if not places.is_own(opened):
            raise PermissionError(errno.EPERM, "not a file of the agent")
        asked.do(opened, wanted)
    finally:
        os.close(opened)
    return 0


def _meant(places: AgentFiles, asked: Change, call: Call) -> int:
    folder = AT_FDCWD if asked.folder is None else call.signed(asked.folder)
    if asked.path is None:
        return places.open_file(call, folder)
    flags = 0 if asked.flags is None else call.unsigned(asked.flags)
    if flags & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
        raise OSError(errno.EINVAL, "no such flag")
    pointer = call.arguments[asked.path]
    if asked.may_lack_name and not pointer and folder != AT_FDCWD:
        return places.open_file(call, folder)
    name = call.text(pointer)
    if not name and flags & _AT_EMPTY_PATH:
        return places.open_file(call, folder)
    return places.named(call, folder, name, asked.follow and not flags & _AT_SYMLINK_NOFOLLOW)


def watch(places: AgentFiles, call: Call, is_waiting: Callable[[], None]) -> int:
    """Adds a watch on a file to the caller's inotify instance; returns the number of the watch.

    Raises:
        PermissionError: The agent may not read the file.
        OSError: The file does not exist, or the kernel refuses the watch.
    """
    mask = call.unsigned(2)
    name = call.text(call.arguments[1])
    opened = places.named(call, AT_FDCWD, name, follow=not mask & _IN_DONT_FOLLOW)
    try:
        watches = call.file(call.signed(0))
        try:
            is_waiting()
            if not places.may_read(opened):
                raise PermissionError(errno.EACCES, "not a file that the agent may read")
            kept = ctypes.c_uint32(mask & ~_IN_DONT_FOLLOW)
            return check(LIBC.inotify_add_watch(watches, _path(opened), kept))
        finally:
            os.close(watches)
    finally:
        os.close(opened)
