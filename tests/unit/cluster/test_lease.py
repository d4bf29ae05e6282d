"""The lease that keeps a claim alive."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.cluster.claims import Claim, ClaimLostError, Lease, NewRun, Progress
from a2rl.cluster.file_claims import FileClaims
from a2rl.core.errors import InfrastructureError

RUN = NewRun("gsm8k-noop-1", "smoke", "smoke-1", "a2rl", 600.0)


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RefusingClaims(FileClaims):
    """Claims whose renewals fail as they are told."""

    lease_s = 120.0
    problem: Exception | None = None
    renewed = 0

    def renew(self, claim: Claim, progress: Progress | None) -> None:
        if self.problem:
            raise self.problem
        self.renewed += 1


def lease(claims: FileClaims, clock: Clock, lost: list[str]) -> Lease:
    return Lease(claims, claims.take(RUN, "a"), lambda: None, lambda: lost.append("lost"), now=clock)


def test_a_lease_is_renewed_every_twenty_seconds(tmp_path: Path) -> None:
    claims, clock, lost = RefusingClaims(tmp_path), Clock(), list[str]()
    held = lease(claims, clock, lost)
    for _ in range(100):
        clock.now += 1
        held.tick()
    assert claims.renewed == 5
    assert not held.is_lost


def test_a_database_that_is_down_for_a_minute_costs_nothing(tmp_path: Path) -> None:
    claims, clock, lost = RefusingClaims(tmp_path), Clock(), list[str]()
    held = lease(claims, clock, lost)
    claims.problem = InfrastructureError("down")
    for _ in range(80):
        clock.now += 1
        held.tick()
    claims.problem = None
    clock.now += 3
    held.tick()
    assert not held.is_lost
    assert claims.renewed == 1


@pytest.mark.parametrize("act", [Lease.check, lambda held: held.is_lost])
def test_a_process_stopped_past_its_lease_has_lost_the_run(tmp_path: Path, act: Callable[[Lease], object]) -> None:
    claims, clock, lost = RefusingClaims(tmp_path), Clock(), list[str]()
    held = lease(claims, clock, lost)
    clock.now += 121
    act(held)
    act(held)
    assert lost == ["lost"]
    held.tick()
    assert claims.renewed == 0


def test_a_renewal_that_is_refused_loses_the_run_at_once(tmp_path: Path) -> None:
    claims, clock, lost = RefusingClaims(tmp_path), Clock(), list[str]()
    held = lease(claims, clock, lost)
    claims.problem = ClaimLostError("taken over")
    clock.now += 20
    held.tick()
    assert lost == ["lost"]


@pytest.mark.parametrize("problem", [sqlite3.OperationalError("disk I/O error"), OSError("no such folder")])
def test_an_odd_error_of_a_renewal_ends_no_lease(tmp_path: Path, problem: Exception) -> None:
    """Nor does something that cannot be said about a run."""

    def progress() -> Progress:
        raise problem

    claims, clock, lost = RefusingClaims(tmp_path), Clock(), list[str]()
    held = Lease(claims, claims.take(RUN, "a"), progress, lambda: lost.append("lost"), now=clock)
    clock.now += 20
    held.tick()
    assert claims.renewed == 1
    claims.problem = problem
    clock.now += 20
    held.tick()
    claims.problem = None
    clock.now += 20
    held.tick()
    assert (claims.renewed, lost) == (2, [])


def test_a_lease_counts_from_before_the_claim_was_asked_for(tmp_path: Path) -> None:
    claims, clock, lost = RefusingClaims(tmp_path), Clock(), list[str]()
    asked_at, clock.now = clock.now, clock.now + 60  # the first answer was lost, the second one came late
    held = Lease(claims, claims.take(RUN, "a"), lambda: None, lambda: lost.append("lost"), asked_at, clock)
    held.tick()
    assert claims.renewed == 1
    claims.problem = InfrastructureError("down")
    clock.now += 111
    assert held.is_lost
