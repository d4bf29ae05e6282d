"""Who works on a run, when several machines could: a claim with an epoch, which fences off whoever held it before.

Each take of a run gets the next epoch. Everything that leaves a machine is committed under its epoch, and a commit of
an older epoch is refused. `Lease` keeps a claim alive, and notices at once when it is lost. Two back ends keep the
rows: files with locks on one machine (file_claims.py), and Postgres for several (postgres_claims.py).
"""

import os
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.event_log import PeriodicThread
from a2rl.core.files import FrozenModel

LEASE_S = 120.0
"""A claim that was not renewed for this long may be taken by another process."""
RENEW_S = 20.0
MARGIN_S = 10.0
"""So long before the lease ends, a claim that could not be renewed counts as lost."""
RETRY_S = 2.0
TICK_S = 0.5
REOPENED = "reopened"
"""The outcome of a run that was reopened, until it is taken."""


class ClaimTakenError(UsageError):
    """Another process works on the run, or the run is closed."""


class ClaimLostError(InfrastructureError):
    """Another process has taken the run over; nothing of this process may be recorded any more."""


class Progress(FrozenModel):
    """What the owner of a run last said about it."""

    stage: str = ""
    """The first stage that is not finished; empty at the end."""
    budget_s: float = 0.0
    elapsed_s: float = 0.0
    """The time of the budget that is used up; a machine that takes over charges at least this."""
    submissions: int = 0
    judge_usd: float = 0.0
    agent_usd: float | None = 0.0
    """What the driver cost so far; None if that is unknown."""
    verdict: str = ""
    refused: int = 0
    """How often a machine took the run and could not set it up."""


class RunRow(FrozenModel):
    """What the claims know about one run."""

    run_id: str
    suite: str = ""
    launch: str = ""
    pool: str = ""
    owner: str = ""
    epoch: int = 0
    """How often the run was taken. 0: never."""
    live: bool = False
    """Whether a process holds the claim now."""
    beat_s: float | None = None
    """Seconds since the owner was last heard; None if nobody has taken the run."""
    done: bool = False
    outcome: str = ""
    """How the run ended, why its last attempt ended, or why a machine did not take it."""
    attempt: int = 1
    """The number of the flow run that is to work on it."""
    flow_run: str = ""
    manifest: str = ""
    """The object that describes the last complete copy; empty before the first."""
    seq: int = 0
    """The last entry of the ledger in that copy."""
    head: str = ""
    """The hash of that entry."""
    progress: Progress = Progress()
    age_s: float = 0.0
    """Seconds since the run was registered."""

    @property
    def attempts(self) -> int:
        """How often the run was begun: taken by a machine that could set it up, as far as is known."""
        return self.epoch - self.progress.refused


@dataclass(frozen=True)
class NewRun:
    """A run that is to be done."""

    run_id: str
    suite: str
    launch: str
    pool: str
    budget_s: float = 0.0


@dataclass(frozen=True)
class Claim:
    """The right to work on a run, for one process."""

    run_id: str
    owner: str
    epoch: int
    before: RunRow = field(compare=False)
    """The row as it was before the claim was taken."""

    def holds(self, row: RunRow) -> bool:
        """Says whether nobody else has taken the run, and nobody has closed it."""
        return (row.owner, row.epoch) == (self.owner, self.epoch) and not row.done


@dataclass(frozen=True)
class Commit:
    """A copy of a run's state that is complete in the store."""

    manifest: str
    entries: Sequence[tuple[int, str]]
    """The sequence numbers and hashes of the entries of the ledger that are new in it."""
    progress: Progress

    def continues(self, row: RunRow) -> bool:
        """Says whether its entries go on from what is stored, or repeat it and go on: a commit whose answer was lost
        is made again with what is new since then."""
        seqs = [seq for seq, _ in self.entries]
        if seqs != list(range(seqs[0], seqs[0] + len(seqs)) if seqs else []):
            return False
        return not seqs or seqs[0] == row.seq + 1 or dict(self.entries).get(row.seq) == row.head


class Claims(ABC):
    """The rows of all runs. The rules are here; how a row is kept and locked is a matter of the back end.

    Every call may raise InfrastructureError, before or after its effect: a connection can break while the answer is on
    its way. So every call may be repeated, and succeeds again if it has succeeded before.
    """

    lease_s: float
    """For how long a claim holds without being renewed, in seconds."""

    @abstractmethod
    def register(self, runs: Sequence[NewRun]) -> None:
        """Adds runs; those that are known stay as they are."""

    @abstractmethod
    def take(self, run: NewRun, owner: str) -> Claim:
        """Takes a run; one that is unknown is registered first. Raises ClaimTakenError if that is not possible.

        Each call is for another owner. A call for the owner of the run was not answered before, and is the same take.
        """

    @abstractmethod
    def release(self, claim: Claim, outcome: str, done: bool) -> None:
        """Gives the run back, unless another process has it; one that was closed meanwhile keeps its outcome."""

    @abstractmethod
    def rows(self, suite: str | None = None) -> list[RunRow]:
        """Returns the rows of a suite or a launch, or all, in the order in which they were registered."""

    @abstractmethod
    def row(self, run_id: str) -> RunRow | None:
        """Returns the row of a run; None if it is unknown."""

    @abstractmethod
    def _update(
        self, run_id: str, applies: Callable[[RunRow], bool], by_owner: bool = False, **changes: object
    ) -> bool:
        """Changes a row if a condition applies to it, and returns whether it does. Nobody changes the row meanwhile.

        Args:
            by_owner: The owner does this: it renews the claim, and a failure is the owner's to deal with, soon.
        """

    def renew(self, claim: Claim, progress: Progress | None) -> None:
        """Says that the owner lives. Raises ClaimLostError if another process has taken the run, or it was closed."""
        told = {"progress": progress} if progress else {}
        if not self._update(claim.run_id, claim.holds, by_owner=True, **told):
            raise lost(claim)

    def commit(self, claim: Claim, commit: Commit) -> None:
        """Makes a copy the valid one. Raises ClaimLostError if the claim, or the order of entries, does not hold."""

        def may_follow(row: RunRow) -> bool:
            return claim.holds(row) and row.live and commit.continues(row)

        last = dict(zip(("seq", "head"), commit.entries[-1], strict=True)) if commit.entries else {}
        changes = {**last, "manifest": commit.manifest, "progress": commit.progress}
        if not self._update(claim.run_id, may_follow, by_owner=True, **changes):
            raise lost(claim)

    def started(self, run_id: str, attempt: int, flow_run: str) -> None:
        """Notes which flow run is to work on an attempt."""
        self._update(run_id, lambda row: row.attempt == attempt, flow_run=flow_run)

    def declined(self, run_id: str, why: str) -> None:
        """Notes why a machine did not take a run that nobody holds."""
        self._update(run_id, lambda row: not row.done and not row.live, outcome=why)

    def next_attempt(self, run_id: str, attempt: int, why: str) -> bool:
        """Moves a run that nobody holds on from this attempt, for this reason.

        Returns:
            Whether it is now at the next attempt, which has no flow run yet.
        """

        def may_move_on(row: RunRow) -> bool:
            is_at = row.attempt == attempt or (row.attempt, row.flow_run) == (attempt + 1, "")
            return is_at and not row.done and not row.live

        return self._update(run_id, may_move_on, attempt=attempt + 1, flow_run="", outcome=why)

    def close(self, run_id: str, outcome: str) -> None:
        """Marks a run as done, so that nobody can take it any more; a live owner loses it at its next renewal."""
        self._update(run_id, lambda row: not row.done, done=True, outcome=outcome)

    def give_up(self, run_id: str, attempt: int, outcome: str) -> bool:
        """Marks a run as done that nobody holds and that is still at this attempt. Returns whether it is."""

        def may_end(row: RunRow) -> bool:
            return row.attempt == attempt and not row.live and (not row.done or row.outcome == outcome)

        return self._update(run_id, may_end, done=True, outcome=outcome)

    def reopen(self, run_id: str) -> None:
        """Allows a closed run to be taken again, in another attempt."""
        seen = self.row(run_id)
        if seen is not None:
            at, following = seen.attempt, seen.attempt + 1
            self._update(
                run_id,
                lambda row: row.done and row.attempt == at,
                done=False,
                outcome=REOPENED,
                attempt=following,
                flow_run="",
            )


def this_owner() -> str:
    """Returns a name for this process that no other process has, and that says where it runs."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def taken(row: RunRow) -> ClaimTakenError:
    """Makes the error for a run that cannot be taken."""
    if row.done:
        return ClaimTakenError(
            f"run {row.run_id} is closed ({row.outcome}): `a2rl suite reopen {row.run_id}` allows it to be continued"
        )
    host, pid = [*row.owner.split(":"), "", ""][:2]
    return ClaimTakenError(
        f"run {row.run_id} is in use by process {pid} on {host} (claim {row.epoch}): wait until it has ended, or stop "
        f"it, then `a2rl resume {row.run_id}`"
    )


def lost(claim: Claim) -> ClaimLostError:
    """Makes the error for a claim that does not hold any more."""
    return ClaimLostError(
        f"run {claim.run_id} was taken over or closed meanwhile (claim {claim.epoch} does not hold any more); nothing "
        "more of this attempt is recorded"
    )


def awake_and_asleep() -> float:
    """Returns seconds since the machine was started, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Renews a claim in a thread until the context is left.

    Args:
        progress: Returns what to say about the run, or None.
        on_lost: Called once, in the thread, when the claim is lost.
        since: When taking the claim began, by the clock; now, if that is not known.
    """

    def __init__(
        self,
        claims: Claims,
        claim: Claim,
        progress: Callable[[], Progress | None],
        on_lost: Callable[[], None],
        since: float | None = None,
        now: Callable[[], float] = awake_and_asleep,
    ) -> None:
        self._claims, self._claim, self._progress, self._on_lost = claims, claim, progress, on_lost
        self._now, self._lease_s, self._renew_s = now, claims.lease_s, min(RENEW_S, claims.lease_s / 6)
        self.renewed_at = now() if since is None else since
        """When the last renewal that succeeded began, by the clock."""
        self._next_at = self.renewed_at + self._renew_s
        self._is_lost = threading.Event()
        self._thread = PeriodicThread("the claim", self.tick, lambda: TICK_S)
        self._watch = PeriodicThread("the lease", self.check, lambda: TICK_S)

    def __enter__(self) -> "Lease":
        self._thread.__enter__()
        self._watch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__(None, None, None)
        self._thread.__exit__(None, None, None)

    @property
    def is_lost(self) -> bool:
        """Whether the run may not be worked on any more."""
        self.check()
        return self._is_lost.is_set()

    def check(self) -> None:
        """Notices that the claim was not renewed in time, also while a renewal hangs."""
        if self._now() - self.renewed_at > self._lease_s - min(MARGIN_S, self._lease_s / 4):
            self.lose()

    def tick(self) -> None:
        """Renews the claim if it is time to."""
        if self._is_lost.is_set() or self._now() < self._next_at:
            return
        began = self._now()
        try:
            self._claims.renew(self._claim, self._known_progress())
        except ClaimLostError:
            self.lose()
        except Exception:  # noqa: BLE001 - such as a restart of the database: `check` decides when it has taken too long
            self._next_at = began + min(RETRY_S, self._renew_s)
        else:
            self.renewed_at, self._next_at = began, began + self._renew_s

    def lose(self) -> None:
        """Gives the claim up; the first call tells the owner."""
        if not self._is_lost.is_set():
            self._is_lost.set()
            self._on_lost()

    def _known_progress(self) -> Progress | None:
        with suppress(Exception):  # what is only shown must not cost the claim
            return self._progress()
        return None
