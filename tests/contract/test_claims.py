"""What both back ends of the claims promise: files with locks on one machine, and Postgres (slow)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from a2rl.cluster.claims import ClaimLostError, Claims, ClaimTakenError, Commit, NewRun, Progress
from a2rl.cluster.file_claims import FileClaims
from a2rl.cluster.postgres_claims import PostgresClaims
from tests.services import running

RUN = NewRun("gsm8k-noop-1", "smoke", "smoke-1", "a2rl", 600.0)


@pytest.fixture(params=["files", pytest.param("postgres", marks=pytest.mark.slow)])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Claims]]:
    """Connects one more process to the same rows."""
    if request.param == "files":
        yield lambda: FileClaims(tmp_path / "claims")
        return
    with running("postgres") as services:
        yield lambda: PostgresClaims(services.variables["A2RL_CLAIMS"])


@pytest.fixture
def claims(connect: Callable[[], Claims]) -> Claims:
    return connect()


def commit(seqs: list[int]) -> Commit:
    return Commit(f"manifest-{seqs}", [(seq, f"hash-{seq}") for seq in seqs], Progress(elapsed_s=5.0))


def outcome(claims: Claims) -> str:
    row = claims.row(RUN.run_id)
    assert row is not None
    return row.outcome


def test_of_two_takers_one_wins_and_the_other_is_told_who(connect: Callable[[], Claims]) -> None:
    holder = connect()  # kept: a file's lock ends with it
    holder.take(RUN, "host-a:17:x")
    with pytest.raises(ClaimTakenError, match="process 17 on host-a"):
        connect().take(RUN, "host-b:18:y")


def test_a_run_that_was_given_back_gets_the_next_epoch(claims: Claims) -> None:
    first = claims.take(RUN, "a")
    claims.release(first, "interrupted", done=False)
    assert claims.take(RUN, "b").epoch == first.epoch + 1


def test_a_commit_under_an_older_epoch_is_refused(claims: Claims) -> None:
    old = claims.take(RUN, "a")
    claims.commit(old, commit([1, 2]))
    claims.release(old, "interrupted", done=False)
    claims.take(RUN, "b")
    with pytest.raises(ClaimLostError):
        claims.commit(old, commit([3]))
    row = claims.row(RUN.run_id)
    assert row is not None
    assert (row.seq, row.manifest) == (2, "manifest-[1, 2]")


def test_an_entry_of_the_ledger_is_committed_once(claims: Claims) -> None:
    claim = claims.take(RUN, "a")
    claims.commit(claim, commit([1, 2]))
    with pytest.raises(ClaimLostError):
        claims.commit(claim, commit([2, 3]))


def test_a_closed_run_cannot_be_taken_and_its_owner_loses_it(claims: Claims) -> None:
    claim = claims.take(RUN, "a")
    claims.close(RUN.run_id, "cancelled")
    with pytest.raises(ClaimLostError):
        claims.renew(claim, None)
    claims.release(claim, "", done=False)
    with pytest.raises(ClaimTakenError, match="cancelled"):
        claims.take(RUN, "b")
    claims.reopen(RUN.run_id)
    assert claims.take(RUN, "b").epoch == 2


def test_an_attempt_is_followed_by_one_other_and_only_if_nobody_holds_the_run(claims: Claims) -> None:
    claim = claims.take(RUN, "a")
    assert not claims.next_attempt(RUN.run_id, 1, "the machine died")
    claims.release(claim, "interrupted", done=False)
    assert claims.next_attempt(RUN.run_id, 1, "the machine died")
    assert not claims.next_attempt(RUN.run_id, 1, "the machine died")


def test_rows_are_found_by_suite_and_by_launch(claims: Claims) -> None:
    claims.register([RUN, NewRun("other", "paper", "paper-1", "a2rl")])
    assert [row.run_id for row in claims.rows("smoke")] == [RUN.run_id]
    assert [row.run_id for row in claims.rows("paper-1")] == ["other"]
    assert len(claims.rows()) == 2


def test_a_refusal_is_noted_unless_somebody_holds_the_run_or_it_is_closed(claims: Claims) -> None:
    claims.register([RUN])
    claims.refused(RUN.run_id, "host-a took nothing: disk: it is full")
    assert outcome(claims) == "host-a took nothing: disk: it is full"
    claim = claims.take(RUN, "b")
    claims.refused(RUN.run_id, "host-a took nothing: agent: it is not installed")
    assert outcome(claims) == ""
    claims.release(claim, "improved", done=True)
    claims.refused(RUN.run_id, "host-a took nothing: agent: it is not installed")
    assert outcome(claims) == "improved"
    claims.refused("unknown", "host-a took nothing: disk: it is full")
    assert claims.row("unknown") is None
