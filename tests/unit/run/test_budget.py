"""Tests durations, the clock over several segments, and refunds for waiting."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a2rl.core.errors import UsageError
from a2rl.run.budget import Clock, format_duration, parse_duration, waited_s
from a2rl.run.events import AgentStarted, GradingFailed
from tests.written_ledger import accepted, entries, graded


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


def test_waiting_is_from_acceptance_to_the_grade() -> None:
    assert waited_s(entries(accepted(1, 10, "a"), graded("a", 25)), now_s=100) == 15


def test_waits_that_overlap_count_once() -> None:
    several = (accepted(1, 10, "a"), accepted(1, 12, "b"), accepted(1, 30, "c"))
    grades = (graded("a", 20), graded("b", 25), graded("c", 31))
    assert waited_s(entries(*several, *grades), now_s=100) == 16
    nested = entries(accepted(1, 10, "a"), accepted(1, 12, "b"), graded("b", 13), graded("a", 40))
    assert waited_s(nested, now_s=100) == 30


def test_an_ungraded_submission_waits_until_now_and_no_longer() -> None:
    assert waited_s(entries(accepted(1, 10, "a")), now_s=18) == 8
    assert waited_s(entries(accepted(1, 10, "a"), graded("a", 50)), now_s=18) == 8


def test_handing_in_the_same_weights_again_waits_for_nothing() -> None:
    assert waited_s(entries(accepted(1, 10, "a"), graded("a", 15), accepted(1, 40, "a")), now_s=100) == 5


def test_a_submission_waits_again_after_a_grade_has_failed() -> None:
    failed = GradingFailed(weights_digest="a", elapsed_s=20, reason="no memory")
    assert waited_s(entries(accepted(1, 10, "a"), failed, accepted(1, 30, "a"), graded("a", 45)), now_s=100) == 25


def test_a_run_without_submissions_waited_for_nothing() -> None:
    assert waited_s(entries(AgentStarted(attempt=1, elapsed_s=0)), now_s=100) == 0
    assert waited_s([], now_s=100) == 0


class Machine:
    """The clocks of a fake machine, which can be restarted and suspended."""

    def __init__(self) -> None:
        self.up_s, self.at, self.boots = 1000.0, 1_700_000_000.0, 1

    def passes(self, seconds: float) -> None:
        self.up_s, self.at = self.up_s + seconds, self.at + seconds

    def is_suspended(self, seconds: float) -> None:
        self.at += seconds

    def restarts(self, seconds: float) -> None:
        self.up_s, self.at, self.boots = 5.0, self.at + seconds, self.boots + 1


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine, tmp_path: Path) -> Clock:
    """A stopped clock of 100 seconds, of which 40 are used."""
    made = clock_on(machine, tmp_path)
    set_state(made, consumed_s=40.0)
    return made


def clock_on(machine: Machine, folder: Path, refunds: bool = True) -> Clock:
    clock = Clock(folder / "clock.json", lambda: machine.up_s, lambda: machine.at, lambda: f"boot {machine.boots}")
    clock.create(100, refunds)
    return clock


def set_state(clock: Clock, **changes: float) -> None:
    clock.path.write_text(clock.read_state().model_copy(update=changes).model_dump_json())


def test_what_was_refunded_is_given_back(clock: Clock) -> None:
    set_state(clock, consumed_s=60.0, refunded_s=15.0)
    assert clock.remaining_s() == 100 + 15 - 60


def test_what_is_given_back_is_at_most_half_the_budget(clock: Clock) -> None:
    set_state(clock, consumed_s=95.0, refunded_s=90.0)
    assert clock.remaining_s() == 100 + 50 - 95


def test_nothing_is_given_back_under_the_paper_protocol(machine: Machine, tmp_path: Path) -> None:
    clock = clock_on(machine, tmp_path, refunds=False)
    set_state(clock, consumed_s=60.0, refunded_s=15.0)
    assert clock.remaining_s() == 40


def test_what_is_left_is_below_zero_when_the_deadline_has_passed(clock: Clock) -> None:
    set_state(clock, consumed_s=130.0)
    assert clock.remaining_s() == -30


def test_the_clock_runs_only_while_the_agent_does(clock: Clock, machine: Machine) -> None:
    machine.passes(7)
    clock.start()
    machine.passes(2)
    assert clock.elapsed_s() == 42
    clock.stop()
    machine.passes(7)
    assert clock.elapsed_s() == Clock(clock.path).elapsed_s() == 42


def test_a_second_segment_goes_on_where_the_first_ended(clock: Clock, machine: Machine) -> None:
    for _ in range(2):
        clock.start()
        machine.passes(3)
        clock.stop()
    assert clock.elapsed_s() == 46


def dies_for(clock: Clock, machine: Machine, seconds: float) -> None:
    """Makes the clock of a pipeline that was killed one second after a heartbeat and is resumed later."""
    clock.start()
    machine.passes(2)
    clock.heartbeat(refunded_s=1.0)
    machine.passes(seconds)


def test_an_agent_that_outlived_its_pipeline_pays_for_that_time(clock: Clock, machine: Machine) -> None:
    dies_for(clock, machine, 30)
    clock.close_lost_segment(still_ran=True, last_change_at=0.0)
    assert clock.elapsed_s() == 42 + 30
    assert clock.read_state().running_since is None


def test_an_agent_that_ended_meanwhile_pays_to_its_last_sign(clock: Clock, machine: Machine) -> None:
    dies_for(clock, machine, 3600)
    clock.close_lost_segment(still_ran=False, last_change_at=machine.at - 3600 + 12)
    assert clock.elapsed_s() == 42 + 12


def test_an_honest_crash_is_free_however_long_a_resume_takes(clock: Clock, machine: Machine) -> None:
    dies_for(clock, machine, 86400)
    clock.close_lost_segment(still_ran=False, last_change_at=machine.at - 86400 - 1)
    assert clock.elapsed_s() == 42


def test_never_is_more_charged_than_the_time_that_passed(clock: Clock, machine: Machine) -> None:
    dies_for(clock, machine, 10)
    clock.close_lost_segment(still_ran=False, last_change_at=machine.at + 1e6)
    assert clock.elapsed_s() == 42 + 10


def test_after_a_restart_of_the_machine_the_wall_clock_counts(clock: Clock, machine: Machine) -> None:
    dies_for(clock, machine, 5)
    machine.restarts(600)
    assert clock.elapsed_s() == 42
    clock.close_lost_segment(still_ran=False, last_change_at=machine.at - 600)
    assert clock.elapsed_s() == 42 + 5


def test_a_wall_clock_that_was_set_back_charges_nothing(clock: Clock, machine: Machine) -> None:
    dies_for(clock, machine, 5)
    machine.restarts(-7200)
    clock.close_lost_segment(still_ran=False, last_change_at=machine.at)
    assert clock.elapsed_s() == 42


def test_while_the_machine_is_suspended_nothing_is_charged(clock: Clock, machine: Machine) -> None:
    clock.start()
    machine.passes(2)
    machine.is_suspended(3600)
    assert clock.elapsed_s() == 42
    clock.close_lost_segment(still_ran=True, last_change_at=machine.at)
    assert clock.elapsed_s() == 42


def test_a_gap_is_made_up_for_once(clock: Clock, machine: Machine) -> None:
    dies_for(clock, machine, 30)
    for _ in range(2):
        clock.close_lost_segment(still_ran=True, last_change_at=machine.at)
    assert clock.elapsed_s() == 72


def test_a_heartbeat_banks_what_was_used_and_refunded(clock: Clock, machine: Machine) -> None:
    clock.start()
    machine.passes(2)
    clock.heartbeat(refunded_s=1.5)
    state = clock.read_state()
    assert (state.consumed_s, state.refunded_s, state.running_since) == (42, 1.5, machine.up_s)


def test_a_heartbeat_of_a_standing_clock_changes_nothing(clock: Clock) -> None:
    before = clock.path.read_bytes()
    clock.heartbeat(refunded_s=50.0)
    assert clock.path.read_bytes() == before


def test_creating_a_clock_again_does_not_set_it_back(clock: Clock) -> None:
    clock.create(1000, refunds=True)
    assert (clock.elapsed_s(), clock.read_state().budget_s) == (40, 100)


def test_the_first_start_is_the_one_that_people_read(clock: Clock, machine: Machine) -> None:
    clock.start()
    first = clock.read_state().started_at
    clock.stop()
    machine.passes(5)
    clock.start()
    assert first is not None
    assert clock.read_state().started_at == first


def test_many_who_write_the_clock_at_once_lose_and_spoil_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clock.json"
    Clock(path).create(100, refunds=True)
    begun = time.monotonic()
    Clock(path).start()

    def beat(_: int) -> None:
        for _ in range(5):
            Clock(path).heartbeat()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(beat, range(8)))
    Clock(path).stop()
    assert 0 < Clock(path).elapsed_s() <= time.monotonic() - begun
