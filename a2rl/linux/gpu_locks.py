"""Deals GPUs to processes: each device has a lock file, so that at most one run on this machine uses it.

with hold_gpus(candidates, 2, folder, "run gsm8k-scripted-...") as gpus:
    ...

The kernel releases a lock when its holder ends, however it ends. Who waits first is served first, even if it needs more
devices than the others: it keeps each one that becomes free. To this end it also holds a second lock of every
candidate, its place in the queue. All processes take these in the same order, so that no two wait for each other.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from a2rl.core.files import machine_failure
from a2rl.core.locks import FileLock, Patience
from a2rl.core.printable import printable
from a2rl.linux.gpus import Gpu

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
    if count:
        _make_folder(folder)
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
    patience = Patience(TIMEOUT_S)
    while True:
        busy: list[str] = []
        for name in names:
            if name not in taken and len(taken) < count:
                owner = _take(folder / name, who, held)
                taken += [name] if owner is None else []
                busy += [owner] if owner is not None else []
        if len(taken) == count:
            return taken
        owners = ", ".join(dict.fromkeys(busy))
        patience.pause(f"{need}; in use by {owners}", f"{need}, which are still in use by {owners}: try again later")


def _take(path: Path, who: str, held: ExitStack) -> str | None:
    """Takes a lock until `held` is closed and returns None, or returns who has it."""
    lock = FileLock(path)
    if lock.take():
        lock.write(f"{who}, process {os.getpid()}"[:MAX_OWNER_BYTES])
        held.callback(lock.release)
        return None
    owner = printable(lock.read(MAX_OWNER_BYTES), MAX_OWNER_BYTES) or "another run"
    lock.release()
    return owner


def _make_folder(folder: Path) -> None:
    """Makes the folder of the lock files, in which every user of the machine may create some."""
    try:
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    except FileExistsError:
        return
    except OSError as error:
        raise machine_failure(f"make {folder}", error) from error
