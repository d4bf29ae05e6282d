"""Claims in files beside a store on one machine: the kernel's lock says who lives, a small JSON file has the row.

A lock ends with its process, however that dies, so there is no lease to wait for. Use Postgres for several machines.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from a2rl.cluster.claims import Claim, Claims, NewRun, Progress, RunRow, taken
from a2rl.core.files import read_model, write_model
from a2rl.core.locks import FileLock, file_lock, is_held

LOCK_TIMEOUT_S = 30


class _Stored(RunRow):
    """A row as it is stored, with times instead of durations."""

    beat_at: float | None = None
    created_at: float = 0.0


class FileClaims(Claims):
    """The rows of all runs in one folder of this machine."""

    lease_s = math.inf
    """A lock holds until its process ends, also while that is stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, FileLock] = {}
        """The lock of each run that this process holds."""

    def register(self, runs: Sequence[NewRun]) -> None:
        """Adds runs; those that are known stay as they are."""
        for run in runs:
            with self._locked(run.run_id):
                self._ensure(run)

    def take(self, run: NewRun, owner: str) -> Claim:
        """Takes a run, again if this owner has it. Raises ClaimTakenError if another one does, or if it is closed."""
        with self._locked(run.run_id), ExitStack() as undo:
            before = self._ensure(run)
            if before.done:
                raise taken(before)
            lock = self._locks.get(run.run_id) if before.owner == owner else None
            epoch = before.epoch + (lock is None)
            if lock is None:
                lock = FileLock(self._owner(run.run_id))
                undo.callback(lock.release)
                if not lock.take():
                    raise taken(before)
            changed = before.model_copy(update={"owner": owner, "epoch": epoch, "beat_at": time.time(), "outcome": ""})
            write_model(self._path(run.run_id), changed)
            undo.pop_all()
            self._locks[run.run_id] = lock
            return Claim(run.run_id, owner, changed.epoch, _shown(before, False))

    def release(self, claim: Claim, outcome: str, done: bool) -> None:
        """Gives the run back; one that was closed meanwhile keeps its outcome."""
        lock = self._locks.pop(claim.run_id, None)
        try:
            self._update(claim.run_id, claim.holds, outcome=outcome, done=done)
        finally:
            if lock is not None:
                lock.release()

    def rows(self, suite: str | None = None) -> list[RunRow]:
        """Returns the rows of a suite or a launch, or all, in the order in which they were registered."""
        stored = [read_model(path, _Stored) for path in self._folder.glob("*.json")]
        found = [row for row in stored if suite is None or suite in {row.suite, row.launch}]
        found.sort(key=lambda row: (row.created_at, row.run_id))
        return [row for each in found if (row := self.row(each.run_id)) is not None]

    def row(self, run_id: str) -> RunRow | None:
        """Returns the row of a run; None if it is unknown."""
        if not self._path(run_id).exists():
            return None
        with self._locked(run_id, shared=True):  # a take locks the run before it writes who the owner is
            row = self._read(run_id)
            return None if row is None else self._show(row)

    def _update(
        self, run_id: str, applies: Callable[[RunRow], bool], by_owner: bool = False, **changes: object
    ) -> bool:
        if by_owner:
            changes["beat_at"] = time.time()
        with self._locked(run_id):
            row = self._read(run_id)
            if row is None or not applies(self._show(row)):
                return False
            write_model(self._path(run_id), row.model_copy(update=changes))
            return True

    def _ensure(self, run: NewRun) -> _Stored:
        if (known := self._read(run.run_id)) is not None:
            return known
        row = _Stored(
            run_id=run.run_id,
            suite=run.suite,
            launch=run.launch,
            pool=run.pool,
            progress=Progress(budget_s=run.budget_s),
            created_at=time.time(),
        )
        write_model(self._path(run.run_id), row)
        return row

    def _read(self, run_id: str) -> _Stored | None:
        try:
            return read_model(self._path(run_id), _Stored)
        except FileNotFoundError:
            return None

    def _show(self, row: _Stored) -> RunRow:
        return _shown(row, row.run_id in self._locks or is_held(self._owner(row.run_id)))

    def _owner(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.owner"

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"

    def _locked(self, run_id: str, shared: bool = False) -> AbstractContextManager[None]:
        """Lets one process at a time change a row, or several read it."""
        row = f"another process changes the row of run {run_id}"
        return file_lock(self._folder / f".{run_id}.lock", row, LOCK_TIMEOUT_S, shared, heeds_stop=False)


def _shown(row: _Stored, live: bool) -> RunRow:
    now = time.time()
    beat_s = None if row.beat_at is None else max(0.0, now - row.beat_at)
    values = {**row.model_dump(), "live": live and not row.done, "beat_s": beat_s, "age_s": now - row.created_at}
    return RunRow.model_validate(values)
