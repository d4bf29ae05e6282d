"""Deals GPUs to processes: each device has a lock file, so that at most one run on this machine uses it.

with hold_gpus(candidates, 2, folder, "run gsm8k-scripted-...") as gpus:
    ...

A GPU that only grades is shared by the runs that have it for that, which take turns on it:

with hold_gpus(candidates, 1, folder, "run gsm8k-scripted-...", shared=1) as (agents, graders):
    with hold_for_grade([graders.uuid], folder, "the grade ..."):
        ...

The kernel releases a lock when its holder ends, however it ends. Who waits first is served first, even if it needs more
devices than the others: it keeps each one that becomes free. To this end it also holds a second lock of every
candidate, its place in the queue. All processes take these in the same order, so that no two wait for each other.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from a2rl.core.files import machine_failure
from a2rl.core.locks import FileLock, Patience
from a2rl.core.printable import printable
from a2rl.core.processes import check_stop
from a2rl.linux.gpus import Gpu

TIMEOUT_S = 7 * 24 * 3600.0
"""How long to wait for earlier runs. Several of them may have the longest budgets, one after the other."""
MAX_OWNER_BYTES = 200


@contextmanager
def hold_gpus(
    candidates: Sequence[Gpu], count: int, folder: Path, who: str, shared: int = 0
) -> Iterator[tuple[Gpu, ...]]:
    """Holds some devices within the context. If they are in use, it waits and says so on stderr.

    Args:
        candidates: The devices to choose from, the preferred ones first.
        count: How many to hold alone.
        folder: The folder of the lock files, the same one for all processes of the machine.
        who: Who holds them, for the notices of others who wait.
        shared: How many to hold besides, together with others who share them: the last ones of which nobody is the only
            holder. There must be candidates enough.

    Yields:
        Those that are held alone, in the order of the candidates, and then the others.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: They did not become free in time, or the lock files cannot be used.
    """
    assert count + shared <= len(candidates)
    by_name = {_name(gpu.uuid): gpu for gpu in candidates}
    needed = count + shared
    need = f"{who} needs {needed} of the GPUs {', '.join(gpu.cuda_name for gpu in candidates)}"
    if needed:
        _make_folder(folder)
    with ExitStack() as held:
        with ExitStack() as queue:
            for place in sorted(f"{name}.queue" for name in by_name) if needed else ():
                _take_first([place], 1, folder, who, need, queue)
            with_others = _take_first([*by_name][::-1], shared, folder, who, need, held, shared=True)
            alone = _take_first([name for name in by_name if name not in with_others], count, folder, who, need, held)
        yield tuple(by_name[name] for names in (alone, with_others) for name in by_name if name in names)


@contextmanager
def hold_for_grade(
    uuids: Iterable[str], folder: Path, who: str, check: Callable[[], None] = check_stop
) -> Iterator[None]:
    """Waits until no other run grades on some GPUs, and keeps others from it within the context.

    Args:
        uuids: The GPUs, which the caller's run holds, alone or with others.
        folder: The folder of the lock files.
        who: Which grade it is, for the notices of others who wait.
        check: Called while it waits; it may raise an error to end the wait.

    Raises:
        InfrastructureError: They did not become free in time, or the lock files cannot be used.
    """
    with ExitStack() as held:
        for name in sorted(map(_name, uuids)):
            _make_folder(folder)
            need = f"{who} needs the GPU {name}"
            with ExitStack() as queue:
                _take_first([f"{name}.grade.queue"], 1, folder, who, need, queue, check=check)
                _take_first([f"{name}.grade"], 1, folder, who, need, held, check=check)
        yield


def _name(uuid: str) -> str:
    """Returns the name of a device's lock file. Old drivers have slashes in the UUIDs of MIG instances."""
    return uuid.replace("/", "-")


def _take_first(
    names: Sequence[str],
    count: int,
    folder: Path,
    who: str,
    need: str,
    held: ExitStack,
    *,
    shared: bool = False,
    check: Callable[[], None] = check_stop,
) -> list[str]:
    """Waits until it has taken this many locks of those named, and returns their names."""
    taken: list[str] = []
    patience = Patience(TIMEOUT_S, check)
    while True:
        busy: list[str] = []
        for name in names:
            if name not in taken and len(taken) < count:
                owner = _take(folder / name, who, held, shared)
                taken += [name] if owner is None else []
                busy += [owner] if owner is not None else []
        if len(taken) == count:
            return taken
        owners = ", ".join(dict.fromkeys(busy))
        patience.pause(f"{need}; in use by {owners}", f"{need}; still in use by {owners}: try again later")


def _take(path: Path, who: str, held: ExitStack, shared: bool) -> str | None:
    """Takes a lock until `held` is closed and returns None, or returns who has it."""
    lock = FileLock(path, shared)
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
