"""Puts files into another folder without copying their bytes, where the system can.

In this order: a clone, a second name (a hard link), a link to the original (on another file system, or for the file of
another user), a copy. The copy and the clone are files of their own; the others are the original, so whoever may write
there must not get them.

Clones (reflinks) share their blocks with the original until one of them is changed. XFS, Btrfs, bcachefs and ZFS have
them; ext4 and tmpfs do not. Source: the manual's ioctl_ficlone(2).
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FICLONE = 0x40049409
UNSUPPORTED = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF}
)
"""Errors that say that this file system, or this pair of files, cannot share blocks."""
READ_ONLY = 0o444


def clone_file(source: int, target: int) -> bool:
    """Makes an open file a clone of another; at once, whatever its size.

    Returns:
        Whether it was done; if not, the target is unchanged, and the file has to be copied.

    Raises:
        OSError: The disk failed.
    """
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        raise
    return True


def place_folder(original: Path, target: Path, *, share: bool, public: bool = False) -> None:
    """Makes `target` a folder with the files of another; links in it are followed.

    Args:
        share: Whether the files may be the originals, which is so if their readers cannot change them.
        public: Whether all users of this machine must be able to read them.
    """

    def place(one: str, other: str) -> None:
        file, name = Path(one).resolve(), Path(other)
        may_share = share and (not public or file.stat().st_mode & stat.S_IROTH)
        if _clone(file, name) or (may_share and _link(file, name)):
            return
        if may_share and (not public or _is_reachable(file)):
            name.symlink_to(file)
        else:
            _copy(file, name)

    shutil.copytree(original, target, copy_function=place)
    for folder in (target, *target.rglob("*")):
        if public and folder.is_dir():
            folder.chmod(0o755)


def place_file(original: Path, target: Path) -> None:
    """Makes `target` a clone, a second name or a copy of a file. It depends on no other folder."""
    file = original.resolve()
    if not _clone(file, target) and not _link(file, target):
        _copy(file, target)


def linked_originals(folder: Path) -> Iterator[Path]:
    """Yields the files outside of a folder to which links in it lead."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            yield path.resolve()


def _clone(original: Path, target: Path) -> bool:
    with original.open("rb") as source, target.open("xb") as clone:
        if clone_file(source.fileno(), clone.fileno()):
            target.chmod(READ_ONLY)
            return True
    target.unlink()
    return False


def _link(original: Path, target: Path) -> bool:
    with suppress(OSError):  # another file system, or a file of another user
        os.link(original, target)
        return True
    return False


def _copy(original: Path, target: Path) -> None:
    shutil.copyfile(original, target)
    target.chmod(READ_ONLY)


def _is_reachable(file: Path) -> bool:
    """Whether all users may pass through all folders above a file."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in file.parents)
