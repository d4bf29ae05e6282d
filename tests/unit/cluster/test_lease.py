"""The claims of runs: the file back end, and the lease that keeps a claim alive."""

from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.cluster.claims import Claim, ClaimLostError, ClaimTakenError, Commit, NewRun, Progress
from a2rl.cluster.file_claims import FileClaims
from a2rl.cluster.lease import Lease
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


@pytest.fixture
def claims(tmp_path: Path) -> FileClaims:
    return FileClaims(tmp_path / "claims")


def commit(seqs: list[int]) -> Commit:
    return Commit(f"manifest-{seqs}", [(seq, f"hash-{seq}") for seq in seqs], Progress(elapsed_s=5.0))


def test_of_two_takers_one_wins_and_the_other_is_told_who(claims: FileClaims, tmp_path: Path) -> None:
    claims.take(RUN, "host-a:17:x")
    with pytest.raises(ClaimTakenError, match="process 17 on host-a"):
        FileClaims(tmp_path / "claims").take(RUN, "host-b:18:y")


def test_a_run_that_was_given_back_gets_the_next_epoch(claims: FileClaims) -> None:
    first = claims.take(RUN, "a")
    claims.release(first, "interrupted", done=False)
    assert claims.take(RUN, "b").epoch == first.epoch + 1


def test_a_commit_under_an_older_epoch_is_refused(claims: FileClaims) -> None:
    old = claims.take(RUN, "a")
    claims.commit(old, commit([1, 2]))
    claims.release(old, "interrupted", done=False)
    claims.take(RUN, "b")
    with pytest.raises(ClaimLostError):
        claims.commit(old, commit([3]))
    row = claims.row(RUN.run_id)
    assert row is not None
    assert (row.seq, row.manifest) == (2, "manifest-[1, 2]")


def test_an_entry_of_the_ledger_is_committed_once(claims: FileClaims) -> None:
    claim = claims.take(RUN, "a")
    claims.commit(claim, commit([1, 2]))
    with pytest.raises(ClaimLostError):
        claims.commit(claim, commit([2, 3]))


def test_a_closed_run_cannot_be_taken_and_its_owner_loses_it(claims: FileClaims) -> None:
    claim = claims.take(RUN, "a")
    claims.close(RUN.run_id, "cancelled")
    with pytest.raises(ClaimLostError):
        claims.renew(claim, None)
    claims.release(claim, "", done=False)
    with pytest.raises(ClaimTakenError, match="cancelled"):
        claims.take(RUN, "b")
    claims.reopen(RUN.run_id)
    assert claims.take(RUN, "b").epoch == 2


def test_an_attempt_is_followed_by_one_other_and_only_if_nobody_holds_the_run(claims: FileClaims) -> None:
    claim = claims.take(RUN, "a")
    assert not claims.next_attempt(RUN.run_id, 1, "the machine died")
    claims.release(claim, "interrupted", done=False)
    assert claims.next_attempt(RUN.run_id, 1, "the machine died")
    assert not claims.next_attempt(RUN.run_id, 1, "the machine died")


def test_rows_are_found_by_suite_and_by_launch(claims: FileClaims) -> None:
    claims.register([RUN, NewRun("other", "paper", "paper-1", "a2rl")])
    assert [row.run_id for row in claims.rows("smoke")] == [RUN.run_id]
    assert [row.run_id for row in claims.rows("paper-1")] == ["other"]
    assert len(claims.rows()) == 2


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
def test_a_process_that_was_stopped_past_its_lease_has_lost_the_run(
    tmp_path: Path, act: Callable[[Lease], object]
) -> None:
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
