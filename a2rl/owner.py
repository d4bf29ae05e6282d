"""One owner: at any time at most one process works on a run.

The lock is the kernel's, on an open file: it ends with its process, however that ends, and a copied directory does not
have it. What the file says is for people only.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from a2rl.errors import InfrastructureError, UsageError
from a2rl.run import RunDir

LOCK = "owner.lock"
MAX_BYTES = 4096
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


@contextmanager
def owned(run: RunDir) -> Iterator[None]:
    """Makes this process the owner of a run until the context is left.

    Raises:
        UsageError: another one is, and the message says which; or there is no such run.
        InfrastructureError: the file system keeps no locks, or cannot be written.
    """
    _ = run.spec  # says so where there is no such run
    lock = _open(run)
    try:
        _take(lock, run)
        _sign(lock)
        yield
    finally:
        os.close(lock)  # which releases it; the file stays, as removing it would let two own it


def _open(run: RunDir) -> int:
    try:
        # Not inherited by children: what a killed pipeline leaves behind must not own the run.
        return os.open(run.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InfrastructureError(f"cannot open {run.root / LOCK}: {error.strerror}; mend that and resume") from error


def _take(lock: int, run: RunDir) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"run {run.id} is being worked on by {_owner(lock)}: wait until that has ended, or stop it, "
            f"then `a2rl resume {run.id}`"
        ) from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise InfrastructureError(f"cannot lock run {run.id}: {error.strerror}; resume it") from error
        raise InfrastructureError(
            f"the file system of {run.root} keeps no locks ({error.strerror}), so that two processes could spoil the "
            "run: move the checkout to a local disk, or have the network file system mounted with locks"
        ) from error


def _sign(lock: int) -> None:
    """Says who owns it."""
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, text.encode(), 0)
    except OSError:
        return  # on a full disk it is locked all the same


def _owner(lock: int) -> str:
    try:
        told = json.loads(os.pread(lock, MAX_BYTES, 0))
        return f"process {int(told['pid'])} on {told['host']} since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
