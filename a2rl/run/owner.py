"""Who may work on a run: one process at a time, in the checkout that made it.

The lock of a run is a kernel lock on an open file. It is released when the process ends for any reason, and a copy of
the directory is not locked. The content of the file only says who that is.

The settings of a run say to which URL keys are sent, what its agent may read and whether it is confined. So the
directory of a run that somebody else made can be read, but nothing is started from it, unless the user says so. Digests
of the settings are kept beside `runs/`, so that no directory that was sent brings its own.

    run = create_run(spec, settings)
    require_made_here([run], settings)        # raises UsageError for another run, unless `trust` was called
"""

import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from pydantic import ValidationError

from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.event_log import append_whole
from a2rl.core.files import StrictModel, file_digest, machine_failure, read_model
from a2rl.core.locks import FileLock, is_held
from a2rl.core.settings import Settings
from a2rl.linux.process_tree import read_process, read_stat
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSpec

LOCK = "owner.lock"
MAX_BYTES = 4096
WRITTEN_WITHIN_S = 0.5
"""How long whoever has taken the lock may need to say who it is."""


class Owner(StrictModel):
    """The content of the lock file: the process that works on the run, or was the last to do so."""

    pid: int
    host: str
    since: str
    queued: int | None = None
    """If it has yet to begin the run: when it started, in clock ticks since boot."""


@contextmanager
def owned(run: RunDir) -> Iterator[None]:
    """Locks a run for this process until the context is left.

    Raises:
        UsageError: Another process owns it (the message says which), or there is no such run.
        InfrastructureError: The file system does not support locks, or cannot be written.
    """
    run.load_spec()  # raises UsageError if there is no such run
    with locked(run):
        yield


@contextmanager
def locked(run: RunDir, queued: int | None = None) -> Iterator[None]:
    """Locks the folder of a run, which must exist but may be empty: a copy may be restored into it.

    Raises the same errors as `owned`.

    Args:
        queued: What the file then says; see `Owner`.
    """
    lock = FileLock(run.root / LOCK)
    if not lock.take():
        owner = _owner(lock)
        lock.release()
        raise UsageError(
            f"run {run.id} is in use by {owner}: wait until it has ended, or stop it, then `a2rl resume {run.id}`"
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    lock.write(Owner(pid=os.getpid(), host=socket.gethostname(), since=since, queued=queued).model_dump_json(indent=2))
    try:
        yield
    finally:
        lock.release()


def queue(run: RunDir) -> None:
    """Notes that this process is to begin or continue a run. Raises the same errors as `owned`."""
    this = read_stat(os.getpid())
    with locked(run, queued=this.started if this else 0):
        pass


def idle(run: RunDir) -> Literal["waiting", "interrupted"] | None:
    """Says why nobody works on a run: a process of this machine has yet to begin it, or has ended before it was done.

    Returns:
        None if somebody works on it, or if that is not known, as of a run of another machine.
    """
    file = run.root / LOCK
    try:
        owner = read_model(file, Owner)
        if owner.host != socket.gethostname() or is_held(file):
            return None
        process = None if owner.queued is None else read_stat(owner.pid)
    except (OSError, A2rlError):
        return None
    # Another process may have this pid by now, but started later.
    return "waiting" if process and process.is_alive and process.started == owner.queued else "interrupted"


def _owner(lock: FileLock) -> str:
    until = time.monotonic() + WRITTEN_WITHIN_S
    while time.monotonic() < until:
        with suppress(ValidationError):
            owner = Owner.model_validate_json(lock.read(MAX_BYTES))
            if owner.host != socket.gethostname() or read_process(owner.pid):  # it may still name one that has ended
                return f"process {owner.pid} on {owner.host} since {owner.since}"
        time.sleep(WRITTEN_WITHIN_S / 10)
    return "another process"


def create_run(spec: RunSpec, settings: Settings) -> RunDir:
    """Creates the directory of a new run of this checkout, which this process is to begin.

    Raises:
        InfrastructureError: A file cannot be written, or the file system does not support locks.
    """
    run = RunDir.create(settings.runs, spec)
    trust(run, settings)
    queue(run)
    return run


def trust(run: RunDir, settings: Settings) -> None:
    """Remembers that the user wants a run with these settings.

    Raises:
        InfrastructureError: The file cannot be written.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(settings.trusted_runs, flags, 0o600), "ab", buffering=0) as file:
            append_whole(file, f"{file_digest(run.root / 'spec.json')}\n".encode())  # one call: others append as well
    except OSError as error:
        raise machine_failure(f"write {settings.trusted_runs}", error) from error


def require_made_here(runs: Iterable[RunDir], settings: Settings) -> None:
    """Checks that runs were made in this checkout, or that the user trusts their settings.

    Raises:
        UsageError: One of them was made elsewhere.
    """
    known = set(settings.trusted_runs.read_text().split()) if settings.trusted_runs.exists() else set()
    for run in runs:
        spec = run.load_spec()
        if file_digest(run.root / "spec.json") not in known:
            raise UsageError(
                f"run {run.id} was not made in this checkout, and its settings are not necessarily yours: agent "
                f"{spec.agent}, URL of its LLM {spec.base_url or 'that of the agent'}, sandbox {spec.sandbox}. Read "
                f"{run.root / 'spec.json'}; if you agree to all of it, `a2rl resume --trust {run.id}`"
            )


def is_made_here(run: RunDir, settings: Settings) -> bool:
    """Says whether `require_made_here` accepts a run, in whose directory what looks like a file may lead anywhere."""
    try:
        run.check_plain()
        require_made_here([run], settings)
    except (A2rlError, OSError):
        return False
    return True
