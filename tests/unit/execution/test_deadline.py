"""Tests that the deadline holds: neither the agent nor a failure elsewhere can delay it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from a2rl.agent_systems.definition import find_agent
from a2rl.core import processes as process
from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.core.event_log import Background
from a2rl.core.settings import Settings
from a2rl.execution.attempt import Attempts
from a2rl.execution.compute import Sample
from a2rl.execution.deadline import RemainingTime, WatchResult, heed_shutdown, watch
from a2rl.grading.service_process import ServiceProcess
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.ledger import Ledger
from a2rl.sandbox.command import AgentExit
from a2rl.sandbox.storage import FULL
from tests.run_maker import REPOSITORY, wait_for
from tests.written_ledger import accepted, graded


class FakeAgent:
    """A fake agent that ends after some time or when it is stopped. Time passes only while it is waited for."""

    def __init__(self, ends_after_s: float = 1e9, exit_code: int = 0) -> None:
        self.now_s, self._ends_after_s, self._exit_code = 0.0, ends_after_s, exit_code
        self.stopped_at_s: float | None = None

    def wait(self, timeout_s: float) -> AgentExit | None:
        self.now_s = min(self.now_s + timeout_s, self._ends_after_s)
        return AgentExit(self._exit_code, "", 0) if self.now_s >= self._ends_after_s else None

    def stop(self) -> AgentExit:
        self.stopped_at_s = self.now_s
        return AgentExit(-15, "", 1)

    def watched(self, budget_s: float, is_spent: Callable[[], bool] = lambda: False) -> str:
        return watch(self, lambda: budget_s - self.now_s, is_spent, lambda: None).reason


def test_an_agent_is_ended_at_its_deadline() -> None:
    agent = FakeAgent()
    assert agent.watched(60.2) == "deadline"
    assert agent.stopped_at_s == pytest.approx(60.2)


def test_one_that_ends_by_itself_is_left_alone() -> None:
    for exit_code, reason in ((0, "finished"), (7, "crashed")):
        agent = FakeAgent(ends_after_s=5, exit_code=exit_code)
        assert agent.watched(60) == reason
        assert agent.stopped_at_s is None


def test_an_agent_that_ends_when_refused_more_reached_its_limit() -> None:
    for exit_code in (0, 1):
        agent = FakeAgent(ends_after_s=0.3, exit_code=exit_code)
        looks = iter([False, True])
        assert agent.watched(60, lambda looks=looks: next(looks)) == "quota"  # type: ignore[misc]
        assert agent.stopped_at_s is None


def test_one_that_has_spent_its_quota_is_ended() -> None:
    agent = FakeAgent()
    assert agent.watched(60, lambda: agent.now_s >= 9) == "quota"
    assert agent.stopped_at_s == pytest.approx(9)


def test_the_user_can_stop_it_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(process, "STOP", stop)
    with pytest.raises(InterruptedByUserError):
        FakeAgent().watched(60)


def test_an_agent_that_the_machines_shutdown_ends_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline learns of it a moment later."""
    heed_shutdown()
    monkeypatch.setattr(process, "STOP", stop := threading.Event())
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(InterruptedByUserError):
        heed_shutdown()


class FakeLoad:
    """A fake agent that computes when the test tells it to."""

    def __init__(self) -> None:
        self.computes, self.broken, self._cpu_s = False, False, 0.0

    def sample(self) -> Sample:
        if self.broken:
            raise PermissionError("hidden")
        self._cpu_s += 10.0 if self.computes else 0.0
        return Sample(self._cpu_s, False)


class Scene:
    """A run of 100 seconds whose meter uses a fake time; the clock's file follows it."""

    def __init__(self, run: RunDir, reserved_s: float = 0.0) -> None:
        self.run, self.load, self.now_s = run, FakeLoad(), 0.0
        self.meter = RemainingTime(run, self.load, reserved_s, now=lambda: self.now_s)

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.meter.update()

    def submits(self, digest: str) -> None:
        self.run.ledger.append(accepted(1, self.now_s, digest))

    def is_graded(self, digest: str) -> None:
        self.run.ledger.append(graded(digest, self.now_s))


@pytest.fixture
def scene(new_run: Callable[..., RunDir]) -> Scene:
    return Scene(new_run(budget_s=100.0))


def test_time_that_passes_is_gone(scene: Scene) -> None:
    scene.passes(30)
    assert scene.meter.left_s() == pytest.approx(70, abs=0.5)


def test_what_the_run_keeps_for_later_is_not_this_attempts(new_run: Callable[..., RunDir]) -> None:
    assert Scene(new_run(budget_s=100.0), reserved_s=60).meter.left_s() == pytest.approx(40, abs=0.5)


def test_waiting_idly_for_a_grade_costs_nothing(scene: Scene) -> None:
    scene.passes(10)
    scene.submits("a")
    scene.passes(20)
    scene.is_graded("a")
    scene.passes(10)
    assert scene.meter.left_s() == pytest.approx(80, abs=0.5)
    assert scene.run.clock.read_state().refunded_s == pytest.approx(20, abs=0.5)


def test_training_on_while_waiting_costs_all_of_it(scene: Scene) -> None:
    scene.passes(10)
    scene.load.computes = True
    for number in range(8):
        scene.submits(f"{number}")
        scene.passes(5)
    assert scene.meter.left_s() == pytest.approx(50, abs=0.5)


def test_a_machine_that_stands_still_costs_nothing(scene: Scene) -> None:
    scene.passes(10)
    scene.now_s += 600
    assert scene.meter.left_s() == pytest.approx(90, abs=0.5)  # at once, so that the deadline does not pass meanwhile
    scene.passes(10)
    assert scene.meter.left_s() == pytest.approx(80, abs=0.5)
    assert scene.run.clock.read_state().stood_still_s == pytest.approx(600, abs=0.5)
    assert scene.run.clock.allowed_s() == pytest.approx(700, abs=0.5)


def test_a_standstill_is_not_lost_if_the_ledger_cannot_be_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    left_meanwhile = []

    def locked(*_: object, **__: int) -> None:
        left_meanwhile.append(scene.meter.left_s())
        raise InfrastructureError("database is locked")

    scene.passes(10)
    scene.now_s += 600
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "entries", locked)
        with pytest.raises(InfrastructureError, match="locked"):
            scene.meter.update()
    scene.passes(10)
    assert [*left_meanwhile, scene.meter.left_s()] == [pytest.approx(90, abs=0.5), pytest.approx(80, abs=0.5)]


def test_a_standstill_while_waiting_for_a_grade_is_refunded_once(scene: Scene) -> None:
    scene.passes(10)
    scene.submits("a")
    scene.now_s += 30
    scene.passes(1)
    scene.is_graded("a")
    scene.passes(10)
    assert scene.meter.left_s() == pytest.approx(80, abs=1.5)


def test_computing_while_the_pipeline_stands_still_costs_time(scene: Scene) -> None:
    scene.passes(10)
    scene.load.computes = True
    scene.now_s += 60
    scene.passes(1)
    assert scene.meter.left_s() == pytest.approx(29, abs=0.5)


def test_where_an_agent_cannot_be_seen_nothing_is_refunded(scene: Scene) -> None:
    scene.load.broken = True
    scene.submits("a")
    scene.passes(20)
    assert scene.meter.left_s() == pytest.approx(80, abs=0.5)


def test_no_more_than_half_the_budget_is_given_back(scene: Scene) -> None:
    scene.passes(1)
    scene.submits("a")
    scene.passes(90)
    assert scene.meter.left_s() == pytest.approx(100 + 50 - 91, abs=0.5)


def test_an_unreachable_clock_or_ledger_delays_no_deadline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk hangs or the ledger is locked, only the thread of `update` waits; the remaining time is known."""
    hangs = threading.Event()
    monkeypatch.setattr("a2rl.run.ledger.Ledger.entries", lambda *_, **__: hangs.wait(30) and [])
    begun = time.monotonic()
    with Background("the clock", scene.meter.update, lambda: 0.01, pipeline_log(scene.run)):
        time.sleep(0.1)
        scene.now_s = 101.0
        assert FakeAgent().watched(scene.meter.left_s()) == "deadline"
        assert time.monotonic() - begun < 2
        hangs.set()


# Background work


def test_what_fails_beside_an_agent_is_noted_once_and_goes_on(run: RunDir) -> None:
    calls = []

    def copy() -> None:
        calls.append(1)
        raise InfrastructureError("the store is gone")

    with Background("copying to the store", copy, lambda: 0.001, pipeline_log(run)):
        wait_for(lambda: len(calls) > 5)
    log = (run.logs / "pipeline.jsonl").read_text()
    assert log.count("the store is gone") == 1


def test_what_hangs_beside_an_agent_is_left_behind(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("a2rl.core.event_log.JOIN_S", 0.1)
    over, begun = threading.Event(), time.monotonic()
    with Background("the recorder", lambda: over.wait(60), lambda: 0.0, pipeline_log(run)):
        time.sleep(0.05)
    assert time.monotonic() - begun < 10
    over.set()


def test_a_log_that_cannot_be_written_does_no_harm(run: RunDir, tmp_path: Path) -> None:
    log = pipeline_log(run)
    log.path = tmp_path / "gone" / "log"
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ZeroDivisionError

    with Background("x", fail, lambda: 0.001, log):
        wait_for(lambda: len(calls) > 2)


@pytest.mark.parametrize(
    ("why", "responsible"), [(FULL, "unknown"), ("its files take 2.0 GiB, more than 1.0", "agent")]
)
def test_an_agent_need_not_have_filled_the_disk_itself(
    run: RunDir, settings: Settings, why: str, responsible: str
) -> None:
    attempts = Attempts(run, find_agent("noop", REPOSITORY), settings, cast(ServiceProcess, None))
    ended = attempts._end_of(WatchResult("crashed", AgentExit(-9, "", 1, stopped=why)), 1, "", 0)
    assert (ended.why, ended.responsible) == (f"it was ended: {why}", responsible)


def test_an_agent_without_an_llm_can_blame_no_api(run: RunDir, settings: Settings) -> None:
    attempts = Attempts(run, find_agent("noop", REPOSITORY), settings, cast(ServiceProcess, None))
    run.agent_log.write_text("RateLimitError: Too many requests\n")
    ended = attempts._end_of(WatchResult("crashed", AgentExit(1, "", 1)), 1, "", 0)
    assert (ended.reason, ended.responsible) == ("crashed", "unknown")
