"""What both back ends of the claims promise: files with locks on one machine, and Postgres (slow)."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from a2rl.cluster.claims import REOPENED, ClaimLostError, Claims, ClaimTakenError, Commit, NewRun, Progress
from a2rl.cluster.file_claims import FileClaims
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.core.errors import InfrastructureError
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


def test_of_many_takers_at_once_one_wins(connect: Callable[[], Claims]) -> None:
    def take(owner: int) -> str:
        try:
            return takers[owner].take(RUN, f"host:{owner}:x").owner
        except ClaimTakenError:
            return ""

    takers = [connect() for _ in range(8)]
    with ThreadPoolExecutor(len(takers)) as threads:
        [winner] = filter(None, threads.map(take, range(len(takers))))
    row = takers[0].row(RUN.run_id)
    assert row is not None
    assert (row.owner, row.epoch, row.live) == (winner, 1, True)


def test_a_run_that_is_being_taken_is_never_one_of_nobody(connect: Callable[[], Claims]) -> None:
    """Before, a row could be read that was live and had no owner yet."""
    taker, reader = connect(), connect()
    taker.register([RUN])
    with ThreadPoolExecutor(1) as threads:
        for number in range(20):
            taking = threads.submit(taker.take, RUN, f"host:{number}:x")
            while not taking.done():
                for row in (reader.row(RUN.run_id), *reader.rows()):
                    assert row is not None
                    assert not row.live or row.owner == f"host:{number}:x"
            taker.release(taking.result(), "", done=False)


def test_changes_at_the_same_time_lose_nothing(claims: Claims) -> None:
    claim = claims.take(RUN, "a")
    changes: list[Callable[[int], object]] = [
        lambda number: claims.commit(claim, commit([number])),
        lambda _: claims.renew(claim, None),
        lambda number: claims.started(RUN.run_id, 1, f"flow run {number}"),
        lambda _: claims.next_attempt(RUN.run_id, 1, "the machine died"),
    ]
    with ThreadPoolExecutor(len(changes)) as threads:
        *_, moved_on = threads.map(lambda change: [change(number) for number in range(1, 9)], changes)
    assert not any(moved_on)
    row = claims.row(RUN.run_id)
    assert row is not None
    assert (row.seq, row.head, row.progress.elapsed_s) == (8, "hash-8", 5.0)
    assert (row.flow_run, row.attempt, row.epoch, row.live) == ("flow run 8", 1, 1, True)


def test_a_run_that_was_given_back_gets_the_next_epoch(claims: Claims) -> None:
    first = claims.take(RUN, "a")
    claims.release(first, "interrupted", done=False)
    assert claims.take(RUN, "b").epoch == first.epoch + 1


def test_a_take_whose_setup_was_refused_is_no_attempt(claims: Claims) -> None:
    for refused in (1, 2, 2):
        claim = claims.take(RUN, "a")
        claims.renew(claim, Progress(refused=refused))
        claims.release(claim, "interrupted", done=False)
    row = claims.row(RUN.run_id)
    assert row is not None
    assert (row.epoch, row.attempts) == (3, 1)


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


@pytest.mark.parametrize("entries", [[(2, "another"), (3, "hash-3")], [(1, "hash-1")], [(4, "hash-4")]])
def test_entries_that_do_not_follow_the_stored_ones_are_refused(claims: Claims, entries: list[tuple[int, str]]) -> None:
    claim = claims.take(RUN, "a")
    claims.commit(claim, commit([1, 2]))
    with pytest.raises(ClaimLostError):
        claims.commit(claim, Commit("manifest", entries, Progress()))


def test_every_call_of_an_owner_may_be_repeated(claims: Claims) -> None:
    for _ in range(2):
        claims.register([RUN])
        claim = claims.take(RUN, "a")
    for _ in range(2):
        claims.renew(claim, Progress(elapsed_s=1.0))
        claims.commit(claim, commit([1, 2]))
    claims.commit(claim, commit([2, 3]))  # what was new since the first try comes with the second
    claims.commit(claim, commit([]))
    for _ in range(2):
        claims.release(claim, "interrupted", done=False)
        assert claims.next_attempt(RUN.run_id, 1, "the machine died")
    row = claims.row(RUN.run_id)
    assert row is not None
    assert (row.seq, row.head, row.epoch, row.attempt, row.live) == (3, "hash-3", 1, 2, False)


class BreakingDriver:
    """The driver of Postgres, with connections that break once, just before or just after a COMMIT."""

    def __init__(self, driver: Any, after: bool) -> None:
        self._driver, self._after, self.has_broken = driver, after, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    @contextmanager
    def connect(self, *values: Any, **options: Any) -> Iterator[Any]:
        with self._driver.connect(*values, **options) as database:
            yield database
            if not (self._after or self.has_broken):
                self.break_once()
        if not self.has_broken:
            self.break_once()

    def break_once(self) -> None:
        self.has_broken = True
        raise self._driver.OperationalError("server closed the connection unexpectedly")


def work_once(claims: Claims, faulty: Callable[[], object]) -> None:
    """Does what a run needs; before each step but the commit, the next connection is made to break."""
    faulty()
    claim = claims.take(RUN, "a")
    claims.commit(claim, commit([1]))
    faulty()
    with pytest.raises(InfrastructureError) as caught:
        claims.commit(claim, commit([2]))
    assert not isinstance(caught.value, ClaimLostError)
    claims.commit(claim, commit([2, 3]))
    faulty()
    with pytest.raises(InfrastructureError):
        claims.renew(claim, None)
    claims.renew(claim, None)
    faulty()
    claims.release(claim, "interrupted", done=False)
    faulty()
    assert claims.next_attempt(RUN.run_id, 1, "the machine died")


@pytest.mark.slow
@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
def test_a_connection_that_breaks_around_a_commit_costs_nothing(after: bool) -> None:
    with running("postgres") as services:
        claims = PostgresClaims(services.variables["A2RL_CLAIMS"])
        driver = claims._driver
        claims.register([RUN])

        def faulty() -> None:
            claims.__dict__["_driver"] = BreakingDriver(driver, after)

        work_once(claims, faulty)
        row = claims.row(RUN.run_id)
    assert row is not None
    assert (row.seq, row.head, row.epoch, row.attempt, row.live) == (3, "hash-3", 1, 2, False)


@pytest.mark.slow
def test_a_lease_that_has_ended_is_anybodys_and_commits_nothing() -> None:
    with running("postgres") as services:
        claims, other = (PostgresClaims(services.variables["A2RL_CLAIMS"], lease_s) for lease_s in (0.0, 120.0))
        claim = claims.take(RUN, "a")
        with pytest.raises(ClaimLostError):
            claims.commit(claim, commit([1]))
        claims.renew(claim, None)  # nobody has taken it meanwhile
        other.commit(other.take(RUN, "b"), commit([1]))
        with pytest.raises(ClaimLostError):
            claims.renew(claim, None)
        with pytest.raises(ClaimLostError):
            claims.commit(claim, commit([2]))
        claims.release(claim, "interrupted", done=True)
        row = other.row(RUN.run_id)
    assert row is not None
    assert (row.owner, row.epoch, row.seq, row.live, row.done) == ("b", 2, 1, True, False)


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


def test_an_attempt_has_one_successor_once_nobody_holds_the_run(claims: Claims) -> None:
    claim = claims.take(RUN, "a")
    assert not claims.next_attempt(RUN.run_id, 1, "the machine died")
    claims.release(claim, "interrupted", done=False)
    assert claims.next_attempt(RUN.run_id, 1, "the machine died")
    claims.started(RUN.run_id, 2, "the flow run of the second attempt")
    assert not claims.next_attempt(RUN.run_id, 1, "the machine died")


def test_a_run_is_given_up_only_as_it_was_seen(claims: Claims) -> None:
    claim = claims.take(RUN, "a")
    assert not claims.give_up(RUN.run_id, 1, "failed: given up")
    claims.release(claim, "interrupted", done=False)
    assert claims.next_attempt(RUN.run_id, 1, "the machine died")
    assert not claims.give_up(RUN.run_id, 1, "failed: given up")
    for _ in range(2):  # the first answer may be lost
        assert claims.give_up(RUN.run_id, 2, "failed: given up")
    row = claims.row(RUN.run_id)
    assert row is not None
    assert row.done


def test_a_run_that_is_done_keeps_its_outcome(claims: Claims) -> None:
    """It ended after somebody saw that it was open, and wanted to cancel it or to give it up."""
    claims.release(claims.take(RUN, "a"), "improved", done=True)
    claims.close(RUN.run_id, "cancelled")
    assert not claims.give_up(RUN.run_id, 1, "failed: given up")
    assert outcome(claims) == "improved"


def test_a_run_that_is_reopened_gets_another_flow_run(claims: Claims) -> None:
    claims.register([RUN])
    claims.started(RUN.run_id, 1, "a flow run that was cancelled")
    claims.close(RUN.run_id, "cancelled")
    for _ in range(2):
        claims.reopen(RUN.run_id)
        row = claims.row(RUN.run_id)
        assert row is not None
        assert (row.done, row.attempt, row.flow_run, row.outcome) == (False, 2, "", REOPENED)


def test_rows_are_found_by_suite_and_by_launch(claims: Claims) -> None:
    claims.register([RUN, NewRun("other", "paper", "paper-1", "a2rl")])
    assert [row.run_id for row in claims.rows("smoke")] == [RUN.run_id]
    assert [row.run_id for row in claims.rows("paper-1")] == ["other"]
    assert len(claims.rows()) == 2


def test_a_refusal_is_noted_unless_the_run_is_held_or_closed(claims: Claims) -> None:
    claims.register([RUN])
    claims.declined(RUN.run_id, "host-a took nothing: disk: it is full")
    assert outcome(claims) == "host-a took nothing: disk: it is full"
    claim = claims.take(RUN, "b")
    claims.declined(RUN.run_id, "host-a took nothing: agent: it is not installed")
    assert outcome(claims) == ""
    claims.release(claim, "improved", done=True)
    claims.declined(RUN.run_id, "host-a took nothing: agent: it is not installed")
    assert outcome(claims) == "improved"
    claims.declined("unknown", "host-a took nothing: disk: it is full")
    assert claims.row("unknown") is None
