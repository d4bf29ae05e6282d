"""Tests that time spent waiting for a grade is refunded, but only time in which the agent did not compute."""

from a2rl.execution.deadline import Refund
from a2rl.run.events import Event, Graded, GradingFailed, SubmissionAccepted
from a2rl.run.ledger import GENESIS, Entry
from a2rl.scoring.score import summarise


def accepted(at_s: float, digest: str) -> Event:
    return SubmissionAccepted(
        submission_id=1, elapsed_s=at_s, model_path="output/v1", weights_digest=digest, code_revision=None, receipt=1
    )


def graded(at_s: float, digest: str) -> Event:
    return Graded(weights_digest=digest, elapsed_s=at_s, result=summarise([]), improvement=None, items_digest="")


def refunded(events: list[Event], computing: set[int], until_s: int = 100, banked_s: float = 0.0) -> float:
    """Returns the refund of an agent that computes in some seconds; each event is seen when its second ends."""
    refund = Refund(banked_s)
    for second in range(until_s):
        new = [Entry(1, 0.0, event, GENESIS, GENESIS) for event in events if second <= event.elapsed_s < second + 1]  # type: ignore[attr-defined]
        refund.tick(second, second + 1, second in computing, new)
    return refund.seconds


def test_an_agent_that_waits_gets_all_of_it_back() -> None:
    assert refunded([accepted(10, "a"), graded(25, "a")], set()) == 15


def test_one_that_trains_on_while_it_waits_gets_nothing() -> None:
    assert refunded([accepted(10, "a"), graded(25, "a")], set(range(100))) == 0


def test_one_that_trains_for_a_part_of_it_gets_the_rest() -> None:
    assert refunded([accepted(10, "a"), graded(25, "a")], set(range(12, 18))) == 9


def test_being_idle_without_waiting_gives_nothing() -> None:
    assert refunded([], set()) == 0
    assert refunded([accepted(10, "a"), graded(11, "a")], set()) == 1


def test_waits_that_overlap_count_once() -> None:
    several = [accepted(10, "a"), accepted(12, "b"), accepted(30, "c"), graded(20, "a"), graded(25, "b")]
    assert refunded([*several, graded(31, "c")], set()) == 16


def test_many_submissions_at_once_give_no_more_than_one() -> None:
    assert refunded([accepted(10, f"{n}") for n in range(50)], set(), until_s=40) == 30


def test_the_same_weights_again_wait_for_nothing() -> None:
    assert refunded([accepted(10, "a"), graded(15, "a"), accepted(40, "a")], set()) == 5


def test_failed_grading_ends_a_wait_and_a_second_try_begins_one() -> None:
    failed = GradingFailed(weights_digest="a", elapsed_s=15, reason="no memory")
    assert refunded([accepted(10, "a"), failed, accepted(40, "a"), graded(43, "a")], set()) == 8


def test_a_copy_that_is_known_later_counts_as_well() -> None:
    late = Entry(1, 0.0, accepted(3, "a"), GENESIS, GENESIS)
    refund = Refund(0.0)
    for second in range(10):
        refund.tick(second, second + 1, second == 4, [late] if second == 8 else [])
    assert refund.seconds == 10 - 3 - 1


def test_what_earlier_segments_banked_stays() -> None:
    assert refunded([accepted(10, "a"), graded(12, "a")], set(), banked_s=7.5) == 9.5


def test_an_ungraded_submission_of_an_old_segment_still_waits() -> None:
    refund = Refund(5.0, [Entry(1, 0.0, accepted(10, "a"), GENESIS, GENESIS)])
    refund.tick(50, 51, False, [])
    assert refund.seconds == 6


def test_hours_of_flickering_cost_neither_memory_nor_time() -> None:
    refund = Refund(0.0)
    for tick in range(20_000):
        refund.tick(tick / 2, (tick + 1) / 2, tick % 2 == 0, [])
    assert len(refund._idle) <= 2000
