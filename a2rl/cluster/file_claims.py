"""Claims in files beside a store on one machine: the kernel's lock says who lives, a small JSON file has the row.

A lock ends with its process, however that dies, so there is no lease to wait for. Use Postgres for several machines.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from a2rl.cluster.claims import Claim, Commit, NewRun, Progress, RunRow, lost, taken
from a2rl.core.files import read_model, write_model
from a2rl.core.locks import FileLock, file_lock, is_held

LOCK_TIMEOUT_S = 30


class _Stored(RunRow):
    """A row as it is stored, with times instead of durations."""

    beat_at: float | None = None
    created_at: float = 0.0


class FileClaims:
    """The rows of all runs in one folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, FileLock] = {}
        """The lock of each run that this process holds."""

    @property
    def lease_s(self) -> float:
        """A lock holds until its process ends, also while that is stopped."""
        return math.inf

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
            if lock is None:
                lock = FileLock(self._owner(run.run_id))
                undo.callback(lock.release)
                if not lock.take():
                    raise taken(before)
            changed = before.model_copy(
                update={"owner": owner, "epoch": before.epoch + 1, "beat_at": time.time(), "outcome": ""}
            )
            write_model(self._path(run.run_id), changed)
            undo.pop_all()
            self._locks[run.run_id] = lock
            return Claim(run.run_id, owner, changed.epoch, _shown(before, False))

    def renew(self, claim: Claim, progress: Progress | None) -> None:
        """Says that the owner lives. Raises ClaimLostError if the claim does not hold any more."""
        told = {"progress": progress} if progress else {}
        if not self._update(claim.run_id, lambda row: _holds(row, claim), beat_at=time.time(), **told):
            raise lost(claim)

    def commit(self, claim: Claim, commit: Commit) -> None:
        """Makes a copy the valid one. Raises ClaimLostError if the claim, or the order of entries, does not hold."""
        new = dict(zip(("seq", "head"), commit.entries[-1], strict=True)) if commit.entries else {}
        new |= {"manifest": commit.manifest, "progress": commit.progress, "beat_at": time.time()}
        if not self._update(claim.run_id, lambda row: _holds(row, claim) and commit.continues(row), **new):
            raise lost(claim)

    def release(self, claim: Claim, outcome: str, done: bool) -> None:
        """Gives the run back; one that was closed meanwhile keeps its outcome."""
        lock = self._locks.pop(claim.run_id, None)
        try:
            self._update(claim.run_id, lambda row: _holds(row, claim), outcome=outcome, done=done)
        finally:
            if lock is not None:
                lock.release()

    def rows(self, suite: str | None = None) -> list[RunRow]:
        """Returns the rows of a suite or a launch, or all, in the order in which they were registered."""
        stored = [read_model(path, _Stored) for path in self._folder.glob("*.json")]
        found = [row for row in stored if suite is None or suite in {row.suite, row.launch}]
        return [self._show(row) for row in sorted(found, key=lambda row: (row.created_at, row.run_id))]

    def row(self, run_id: str) -> RunRow | None:
        """Returns the row of a run; None if it is unknown."""
        row = self._read(run_id)
        return None if row is None else self._show(row)

    def started(self, run_id: str, attempt: int, flow_run: str) -> None:
        """Notes which flow run is to work on an attempt."""
        self._update(run_id, lambda row: row.attempt == attempt, flow_run=flow_run)

    def declined(self, run_id: str, why: str) -> None:
        """Notes why a machine did not take a run that nobody holds."""
        self._update(run_id, lambda row: not row.done and not self._is_live(run_id), outcome=why)

    def next_attempt(self, run_id: str, attempt: int, why: str) -> bool:
        """Moves a run that nobody holds on from this attempt. Returns whether the next one has no flow run yet."""

        def may_move_on(row: _Stored) -> bool:
            is_at = row.attempt == attempt or (row.attempt, row.flow_run) == (attempt + 1, "")
            return is_at and not row.done and not self._is_live(run_id)

        return self._update(run_id, may_move_on, attempt=attempt + 1, flow_run="", outcome=why)

    def close(self, run_id: str, outcome: str) -> None:
        """Marks a run as done."""
        self._update(run_id, lambda _: True, done=True, outcome=outcome)

    def give_up(self, run_id: str, attempt: int, outcome: str) -> bool:
        """Marks a run as done that nobody holds and that is still at this attempt. Returns whether it is."""
        return self._update(
            run_id, lambda row: row.attempt == attempt and not self._is_live(run_id), done=True, outcome=outcome
        )

    def reopen(self, run_id: str) -> None:
        """Allows a closed run to be taken again, in another attempt."""
        row = self._read(run_id)
        if row is not None:
            self._update(run_id, lambda row: row.done, done=False, attempt=row.attempt + 1, flow_run="")

    def _update(self, run_id: str, applies: Callable[[_Stored], bool], **changes: Any) -> bool:
        """Changes a row if the condition applies to it; returns whether it does."""
        with self._locked(run_id):
            row = self._read(run_id)
            if row is None or not applies(row):
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
        return _shown(row, self._is_live(row.run_id))

    def _is_live(self, run_id: str) -> bool:
        return run_id in self._locks or is_held(self._owner(run_id))

    def _owner(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.owner"

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"

    def _locked(self, run_id: str) -> AbstractContextManager[None]:
        """Lets one process at a time change a row."""
        row = f"another process changes the row of run {run_id}"
        return file_lock(self._folder / f".{run_id}.lock", row, LOCK_TIMEOUT_S, heeds_stop=False)


def _holds(row: _Stored, claim: Claim) -> bool:
    return (row.owner, row.epoch) == (claim.owner, claim.epoch) and not row.done


def _shown(row: _Stored, live: bool) -> RunRow:
    now = time.time()
    beat_s = None if row.beat_at is None else max(0.0, now - row.beat_at)
    values = {**row.model_dump(), "live": live, "beat_s": beat_s, "age_s": now - row.created_at}
    return RunRow.model_validate(values)
