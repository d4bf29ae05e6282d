"""Deals GPUs to processes: each device has a lock file, so that at most one run on this machine uses it.

with hold_gpus(candidates, 2, folder, "run gsm8k-scripted-...") as gpus:
    ...

The kernel releases a lock when its holder ends, however it ends. Who waits first is served first, even if it needs more
devices than the others: it keeps each one that becomes free. To this end it also holds a second lock of every
candidate, its place in the queue. All processes take these in the same order, so that no two wait for each other.
"""

import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import machine_failure
from a2rl.core.printable import printable
from a2rl.core.processes import check_stop
from a2rl.linux.gpus import Gpu

POLL_INTERVAL_S = 0.2
FIRST_NOTICE_S = 1.0
NOTICE_INTERVAL_S = 60.0
TIMEOUT_S = 7 * 24 * 3600.0
"""How long to wait for earlier runs. Several of them may have the longest budgets, one after the other."""
MAX_OWNER_BYTES = 200


@contextmanager
def hold_gpus(candidates: Sequence[Gpu], count: int, folder: Path, who: str) -> Iterator[tuple[Gpu, ...]]:
    """Holds some devices within the context. If they are in use, it waits and says so on stderr.

    Args:
        candidates: The devices to choose from, the preferred ones first.
        count: How many to hold; at most as many as there are candidates.
        folder: The folder of the lock files, the same one for all processes of the machine.
        who: Who holds them, for the notices of others who wait.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: They did not become free in time, or the lock files cannot be used.
    """
    assert count <= len(candidates)
    need = f"{who} needs {count} of the GPUs {', '.join(gpu.cuda_name for gpu in candidates)}"
    with ExitStack() as held:
        with ExitStack() as queue:
            for place in sorted(f"{_name(gpu)}.queue" for gpu in candidates) if count else ():
                _take_first([place], 1, folder, who, need, queue)
            taken = _take_first([_name(gpu) for gpu in candidates], count, folder, who, need, held)
        yield tuple(gpu for gpu in candidates if _name(gpu) in taken)


def _name(gpu: Gpu) -> str:
    """Returns the name of a device's lock file. Old drivers have slashes in the UUIDs of MIG instances."""
    return gpu.uuid.replace("/", "-")


def _take_first(names: Sequence[str], count: int, folder: Path, who: str, need: str, held: ExitStack) -> list[str]:
    """Waits until it has taken this many locks of those named, and returns their names."""
    taken: list[str] = []
    began = time.monotonic()
    next_notice = began + FIRST_NOTICE_S
    while True:
        busy: list[str] = []
        for name in names:
            if name not in taken and len(taken) < count:
                owner = _take(folder / name, who, held.callback)
                taken += [name] if owner is None else []
                busy += [owner] if owner is not None else []
        if len(taken) == count:
            return taken
        check_stop()
        waited_s, owners = time.monotonic() - began, ", ".join(dict.fromkeys(busy))
        if waited_s > TIMEOUT_S:
            raise InfrastructureError(f"{need}, which are still in use by {owners}: try again later")
        if time.monotonic() >= next_notice:
            sys.stderr.write(f"waiting: {need}; in use by {owners} ({waited_s:.0f} s)\n")
            next_notice = time.monotonic() + NOTICE_INTERVAL_S
        time.sleep(POLL_INTERVAL_S)


def _take(path: Path, who: str, keep: Callable[[Callable[[int], None], int], object]) -> str | None:
    """Takes a lock and returns None, or returns who has it.

    Args:
        path: The lock file.
        who: Who takes it.
        keep: Called with the function and the file descriptor that release it.
    """
    try:
        lock = _open(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(lock)
            os.close(lock)
            return owner
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise machine_failure(f"lock {path}", error) from error
    if os.fstat(lock).st_nlink == 0:  # a program that tidies up has removed it meanwhile
        os.close(lock)
        return _take(path, who, keep)
    with suppress(OSError):  # it belongs to another user; the lock holds nevertheless
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{who}, process {os.getpid()}".encode()[:MAX_OWNER_BYTES], 0)
    keep(os.close, lock)
    return None


def _open(path: Path) -> int:
    """Opens a lock file, which any user may have created."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o1777)
    except FileExistsError:
        pass
    for kind in (os.O_RDWR, os.O_RDONLY):
        with suppress(FileNotFoundError, PermissionError):
            lock = os.open(path, kind | flags)
            if stat.S_ISREG(os.fstat(lock).st_mode):
                return lock
            os.close(lock)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    os.fchmod(lock, 0o644)  # whatever the umask says: without reading it, others could not lock it
    return lock


def _owner(lock: int) -> str:
    with suppress(OSError):
        return printable(os.pread(lock, MAX_OWNER_BYTES, 0).decode(errors="replace"), MAX_OWNER_BYTES) or "another run"
    return "another run"
