"""Durations, the clock over several segments, and what is given back for waiting."""

import time
from pathlib import Path

import pytest

from a2rl.budget import Clock, format_duration, parse_duration, waited_s
from a2rl.errors import UsageError
from a2rl.events import AgentStarted, Event, Graded, SubmissionAccepted
from a2rl.ledger import GENESIS, Entry
from a2rl.score import summarise


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("30m", 1800), ("12h", 43200), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800), (" 2m ", 120),
        ("0.5s", 0.5), ("1d2h3m4s", 93784),
    ],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "12", "h", "0s", "0h0m", "-5m", "1,5h", "5 m", "5min", "12H", "1h 30m", "nan", "inf", "1e3s", "0x10s",
     "1..5h", "5s!", "\n", "9" * 400 + "h"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="write for example") as refused:
        parse_duration(text)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (90, "1m30s"), (3600, "1h"), (43200, "12h"), (86400, "1d"), (59.6, "1m"), (93784, "1d2h3m4s")],
)
def test_durations_are_written_as_they_are_read(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def accepted(at_s: float, digest: str) -> Event:
    return SubmissionAccepted(
        submission_id=1, elapsed_s=at_s, model_path="output/v1", weights_digest=digest, code_revision=None
    )


def graded(at_s: float, digest: str) -> Event:
    return Graded(weights_digest=digest, elapsed_s=at_s, result=summarise([]), improvement=None, items_digest="")


def entries(*events: Event) -> list[Entry]:
    return [Entry(seq, 0.0, event, GENESIS, GENESIS) for seq, event in enumerate(events, start=1)]


def test_waiting_is_from_acceptance_to_the_grade() -> None:
    assert waited_s(entries(accepted(10, "a"), graded(25, "a")), now_s=100) == 15


def test_waits_that_overlap_count_once() -> None:
    several = entries(
        accepted(10, "a"), accepted(12, "b"), accepted(30, "c"), graded(20, "a"), graded(25, "b"), graded(31, "c")
    )
    assert waited_s(several, now_s=100) == 16
    nested = entries(accepted(10, "a"), accepted(12, "b"), graded(13, "b"), graded(40, "a"))
    assert waited_s(nested, now_s=100) == 30


def test_an_ungraded_submission_waits_until_now_and_no_longer() -> None:
    assert waited_s(entries(accepted(10, "a")), now_s=18) == 8
    assert waited_s(entries(accepted(10, "a"), graded(50, "a")), now_s=18) == 8


def test_handing_in_the_same_weights_again_waits_for_nothing() -> None:
    assert waited_s(entries(accepted(10, "a"), graded(15, "a"), accepted(40, "a")), now_s=100) == 5


def test_a_run_without_submissions_waited_for_nothing() -> None:
    assert waited_s(entries(AgentStarted(attempt=1, elapsed_s=0)), now_s=100) == 0
    assert waited_s([], now_s=100) == 0


def clock_at(path: Path, elapsed_s: float, refunds: bool = True) -> Clock:
    """A clock of 100 seconds that stands still."""
    clock = Clock(path / "clock.json")
    clock.create(100, refunds)
    clock.path.write_text(clock.state.model_copy(update={"consumed_s": elapsed_s}).model_dump_json())
    return clock


def test_waiting_is_given_back(tmp_path: Path) -> None:
    waits = entries(accepted(10, "a"), graded(25, "a"))
    assert clock_at(tmp_path, 60).remaining_s(waits) == 100 + 15 - 60


def test_what_is_given_back_is_at_most_half_the_budget(tmp_path: Path) -> None:
    waits = entries(accepted(0, "a"), graded(90, "a"))
    assert clock_at(tmp_path, 95).remaining_s(waits) == 100 + 50 - 95


def test_nothing_is_given_back_under_the_paper_protocol(tmp_path: Path) -> None:
    waits = entries(accepted(10, "a"), graded(25, "a"))
    assert clock_at(tmp_path, 60, refunds=False).remaining_s(waits) == 40


def test_nothing_is_left_below_zero_when_the_deadline_has_passed(tmp_path: Path) -> None:
    assert clock_at(tmp_path, 130).remaining_s([]) == -30


def test_the_clock_runs_only_while_the_agent_does(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 0)
    assert clock.elapsed_s() == clock.elapsed_s() == 0
    begun = time.monotonic()
    clock.start()
    while clock.elapsed_s() < 0.02:
        assert time.monotonic() < begun + 5
    clock.stop()
    stood = clock.elapsed_s()
    assert 0.02 <= stood <= time.monotonic() - begun
    assert clock.elapsed_s() == stood == Clock(clock.path).elapsed_s()


def test_a_second_segment_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 40)
    clock.start()
    clock.stop()
    assert 40 < clock.elapsed_s() < 45


def test_time_after_the_last_heartbeat_of_a_crash_is_not_charged(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 40)
    an_hour_ago = time.monotonic() - 3600
    clock.path.write_text(clock.state.model_copy(update={"running_since": an_hour_ago}).model_dump_json())
    assert clock.elapsed_s() > 3600
    clock.abandon()
    assert clock.elapsed_s() == 40


def test_starting_again_after_a_crash_does_not_charge_the_gap(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 40)
    an_hour_ago = time.monotonic() - 3600
    clock.path.write_text(clock.state.model_copy(update={"running_since": an_hour_ago}).model_dump_json())
    clock.start()
    assert 40 <= clock.elapsed_s() < 45


def test_a_heartbeat_banks_what_was_used(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 40)
    clock.start()
    before = clock.state
    clock.heartbeat()
    assert clock.state.consumed_s > before.consumed_s
    assert clock.state.running_since is not None


def test_a_heartbeat_of_a_standing_clock_changes_nothing(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 40)
    before = clock.path.read_bytes()
    clock.heartbeat()
    assert clock.path.read_bytes() == before


def test_creating_a_clock_again_does_not_set_it_back(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 40)
    clock.create(1000, refunds=True)
    assert (clock.elapsed_s(), clock.state.budget_s) == (40, 100)


def test_the_first_start_is_the_one_that_people_read(tmp_path: Path) -> None:
    clock = clock_at(tmp_path, 0)
    clock.start()
    first = clock.state.started_at
    clock.stop()
    clock.start()
    assert first is not None
    assert clock.state.started_at == first
