"""Tests that time spent waiting for a grade is refunded, but only time in which the agent did not compute."""

from a2rl.execution.deadline import Refund
from a2rl.run.events import Event, GradingFailed
from tests.written_ledger import accepted, entries, graded


def refunded(events: list[Event], computing: set[int], until_s: int = 100, banked_s: float = 0.0) -> float:
    """Returns the refund of an agent that computes in some seconds; each event is seen when its second ends."""
    refund = Refund(banked_s)
    for second in range(until_s):
        new = [event for event in events if second <= event.elapsed_s < second + 1]  # type: ignore[attr-defined]
        refund.tick(second, second + 1, second in computing, entries(*new))
    return refund.seconds


def test_an_agent_that_waits_gets_all_of_it_back() -> None:
    assert refunded([accepted(1, 10, "a"), graded("a", 25)], set()) == 15


def test_one_that_trains_on_while_it_waits_gets_nothing() -> None:
    assert refunded([accepted(1, 10, "a"), graded("a", 25)], set(range(100))) == 0


def test_one_that_trains_for_a_part_of_it_gets_the_rest() -> None:
    assert refunded([accepted(1, 10, "a"), graded("a", 25)], set(range(12, 18))) == 9


def test_being_idle_without_waiting_gives_nothing() -> None:
    assert refunded([], set()) == 0
    assert refunded([accepted(1, 10, "a"), graded("a", 11)], set()) == 1


def test_waits_that_overlap_count_once() -> None:
    several = [accepted(1, 10, "a"), accepted(1, 12, "b"), accepted(1, 30, "c"), graded("a", 20), graded("b", 25)]
    assert refunded([*several, graded("c", 31)], set()) == 16


def test_many_submissions_at_once_give_no_more_than_one() -> None:
    assert refunded([accepted(1, 10, f"{n}") for n in range(50)], set(), until_s=40) == 30


def test_the_same_weights_again_wait_for_nothing() -> None:
    assert refunded([accepted(1, 10, "a"), graded("a", 15), accepted(1, 40, "a")], set()) == 5


def test_failed_grading_ends_a_wait_and_a_second_try_begins_one() -> None:
    failed = GradingFailed(weights_digest="a", elapsed_s=15, reason="no memory")
    assert refunded([accepted(1, 10, "a"), failed, accepted(1, 40, "a"), graded("a", 43)], set()) == 8


def test_a_copy_that_is_known_later_counts_as_well() -> None:
    [late] = entries(accepted(1, 3, "a"))
    refund = Refund(0.0)
    for second in range(10):
        refund.tick(second, second + 1, second == 4, [late] if second == 8 else [])
    assert refund.seconds == 10 - 3 - 1


def test_what_earlier_segments_banked_stays() -> None:
    assert refunded([accepted(1, 10, "a"), graded("a", 12)], set(), banked_s=7.5) == 9.5


def test_an_ungraded_submission_of_an_old_segment_still_waits() -> None:
    refund = Refund(5.0, entries(accepted(1, 10, "a")))
    refund.tick(50, 51, False, [])
    assert refund.seconds == 6


def test_hours_of_flickering_cost_neither_memory_nor_time() -> None:
    refund = Refund(0.0)
    for tick in range(20_000):
        refund.tick(tick / 2, (tick + 1) / 2, tick % 2 == 0, [])
    assert len(refund._idle) <= 2000
