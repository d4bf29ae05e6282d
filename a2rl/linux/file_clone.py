"""Clones of files that share their blocks with the original until one of them is changed (reflinks).

XFS, Btrfs, bcachefs and ZFS have them; ext4 and tmpfs do not. Source: the manual's ioctl_ficlone(2).
"""

import errno
import fcntl

FICLONE = 0x40049409
UNSUPPORTED = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF}
)
"""Errors that say that this file system, or this pair of files, cannot share blocks."""


def clone_file(source: int, target: int) -> bool:
    """Makes an open file a clone of another; at once, whatever its size.

    Args:
        source: The descriptor of the original, open for reading.
        target: The descriptor of a file of ours, open for writing.

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
