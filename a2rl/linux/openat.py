"""Opens a path below an open folder without following links, by openat2(2) or step by step.

Source: man 2 openat2 (Linux 5.6). If openat2 is missing, or a container's filter refuses it, the folders on the way are
opened one after the other with O_NOFOLLOW. This reaches the same files, but does not detect mounts on the way.
Python's `os` module has no openat2.
"""

import ctypes
import errno
import os
import struct
from functools import cache

_OPENAT2 = 437  # on all architectures
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 8
"""openat2 fails with EAGAIN if something is renamed at the same time."""


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Opens `path`, which may have several parts, below the open `folder` without following links.

    With O_PATH, the last part may be a link, which is then opened itself. The call never blocks.

    Raises:
        OSError: It cannot be opened; ELOOP, ENOTDIR or EXDEV if a link, a file or a mount is on the way.
        ValueError: The path is not a valid file name.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK * (not flags & os.O_PATH)
    if not has_openat2():
        return _step_by_step(folder, path, flags)
    for _ in range(_TRIES):
        try:
            return _openat2(folder, os.fsencode(path), flags)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EINTR}:
                raise
            last = error
    raise last


@cache
def has_openat2() -> bool:
    """Whether openat2 exists and no filter refuses it."""
    try:
        here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(_openat2(here, b".", os.O_PATH | os.O_CLOEXEC))
        finally:
            os.close(here)
    except OSError:
        return False
    return True


def _openat2(folder: int, path: bytes, flags: int) -> int:
    if b"\0" in path:
        raise ValueError("embedded null byte")
    how = struct.pack("QQQ", flags, 0, _RESOLVE)
    opened = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_long(folder), ctypes.c_char_p(path), how, ctypes.c_size_t(len(how))
    )
    if opened < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(path))
    return int(opened)


def _step_by_step(folder: int, path: str, flags: int) -> int:
    *folders, name = path.split("/")
    if ".." in (*folders, name) or path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    here = os.dup(folder)
    try:
        for step in folders:
            below = os.open(step or ".", _STEP, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name or ".", flags, dir_fd=here)
    finally:
        os.close(here)
