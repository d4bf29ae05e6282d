"""Tests how simultaneous runs share a machine."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from a2rl.anchor.signatures import read_signatures
from a2rl.anchor.signing import Signer, sign_heads
from a2rl.cli.results import state_of
from a2rl.cluster import claims
from a2rl.cluster.claims import ClaimLostError
from a2rl.cluster.file_claims import FileClaims
from a2rl.cluster.holding import held
from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs
from a2rl.core.errors import InfrastructureError, InterruptedByUserError, RunFailedError, UsageError
from a2rl.core.processes import check_stop
from a2rl.core.settings import Settings
from a2rl.results.mirror import Mirror
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from a2rl.run.failure import forget_failure, refusal
from a2rl.run.gpu_share import allocated_gpus
from a2rl.run.records import STAGES
from flows import pipeline
from flows.pipeline import benchmark_run, on_cores, shares_of_cores
from tests.fake_gpus import FakeGpus
from tests.run_maker import spec
from tests.signing_key import make_key


@pytest.mark.parametrize(
    ("cores", "runs", "shares"),
    [
        ({0, 1}, 0, []),
        ({0, 1}, 1, [[0, 1]]),
        ({0, 1}, 2, [[0], [1]]),
        ({4, 5, 6, 7, 8}, 2, [[4, 5], [6, 7]]),
        ({0, 1}, 3, [[0, 1]] * 3),
    ],
)
def test_cores_are_dealt_out_evenly_and_shared_if_there_are_few(
    cores: set[int], runs: int, shares: list[list[int]]
) -> None:
    assert shares_of_cores(cores, runs) == shares


def test_a_run_keeps_to_its_cores_and_does_not_change_others() -> None:
    before = os.sched_getaffinity(0)
    with on_cores({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


class _Follower(list[str]):
    """Notes what it is told, in place of a mirror."""

    def follow(self, run: RunDir) -> None:
        self.append(f"follow {run.id}")

    def leave(self, run: RunDir) -> None:
        self.append(f"leave {run.id}")


def begin(run: RunDir, settings: Settings) -> None:
    benchmark_run.fn(run, settings, [], os.sched_getaffinity(0))


def test_a_run_that_setup_refuses_is_shown_as_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown so until it is tried again."""

    def refuse(*_: object) -> None:
        raise UsageError("no model 'x': name one")

    monkeypatch.setitem(pipeline.STAGE_TASKS, "setup", refuse)
    run = RunDir.create(settings.runs, spec())
    assert state_of(run) == "new"
    with pytest.raises(UsageError):
        begin(run, settings)
    assert (state_of(run), refusal(run)) == ("refused", "no model 'x': name one")
    forget_failure(run)
    assert state_of(run) == "new"


@pytest.mark.parametrize("ends", [None, InterruptedByUserError("stopped")])
def test_a_run_holds_its_gpus_from_baseline_to_result(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, ends: Exception | None
) -> None:
    """It gives them back however it ends."""
    held: list[tuple[str, int]] = []
    run = RunDir.create(settings.runs, spec(model="m", gpus_per_run=1))
    fake = FakeGpus(settings.root, 1)

    def stage(name: str) -> Callable[..., None]:
        def work(*_: Any) -> None:
            held.append((name, _locks_held()))
            if name == "execute" and ends is not None:
                raise ends

        return work

    for name in STAGES:
        monkeypatch.setitem(pipeline.STAGE_TASKS, name, stage(name))
    try:
        begin(run, fake.seen_by(settings))
    except InterruptedByUserError:
        assert ends is not None
    expected = [("setup", 0), ("baseline", 1), ("execute", 1), ("grade", 1), ("validity", 1), ("report", 0)]
    assert held == expected[: 3 if ends else 6]
    assert _locks_held() == 0


def test_a_run_that_gets_no_gpus_fails_whatever_it_has_done(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reached = RunDir.create(settings.runs, spec(model="m", gpus_per_run=1)), list[str]()

    def fail(*_: Any) -> None:
        raise InfrastructureError("the driver does not answer")

    for name in STAGES:
        monkeypatch.setitem(pipeline.STAGE_TASKS, name, lambda *_, name=name: reached.append(name))
    monkeypatch.setattr(pipeline, "allocated_gpus", fail)
    run.record_path("baseline").parent.mkdir(exist_ok=True)
    run.record_path("baseline").write_text("{}")
    with pytest.raises(RunFailedError, match="the driver does not answer"):
        begin(run, settings)
    assert "execute" not in reached


def test_resumed_runs_go_on_as_they_were_planned(settings: Settings) -> None:
    """As many at a time as then, whatever params.yaml says by now; runs of an earlier version, one."""
    params = load_params(settings.root)
    planned = plan_runs(choose_suite(params, "full-bench", concurrency=8), "full-bench", params, settings)
    runs = [RunDir.create(settings.runs, each) for each in planned[:2]]
    old = RunDir.create(settings.runs, spec(run_id="old"))
    assert [pipeline._concurrency_of(each) for each in (runs, runs[:1], [*runs, old], [old])] == [8, 8, 8, 1]
    on_a_port = [RunDir.create(settings.runs, spec(run_id=f"p{n}", side_by_side=2, grading_port=8765)) for n in "ab"]
    assert pipeline._concurrency_of(on_a_port) == 1


def test_a_run_that_is_resumed_alone_keeps_its_share(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.create(settings.runs, spec(model="m", side_by_side=4))
    seen = FakeGpus(settings.root, 8).seen_by(settings)
    with allocated_gpus(run, seen) as share:
        assert len(share.agent) == 2
    given: list[list[int]] = []

    def submit(_: RunDir, __: Settings, ___: list[Mirror], cores: list[int], *____: object) -> SimpleNamespace:
        given.append(cores)
        return SimpleNamespace(add_done_callback=lambda _: None, result=lambda **_: None)

    monkeypatch.setattr(pipeline, "benchmark_run", SimpleNamespace(submit=submit))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(pipeline, "show_results", lambda *_: None)
    pipeline._run_side_by_side([run], pipeline._concurrency_of([run]), settings)
    assert [len(cores) for cores in given] == [2]


@pytest.mark.parametrize("end", [FileClaims.close, lambda claims, run_id, _: claims._path(run_id).unlink()])
def test_a_run_that_is_cancelled_or_lost_ends_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: Callable[[FileClaims, str, str], None]
) -> None:
    settings.environ["A2RL_STORE"] = f"file://{tmp_path}/store"
    monkeypatch.setattr(claims, "RENEW_S", 0.1)
    may_end, at_work, follower = threading.Event(), threading.Barrier(3), _Follower()

    def work(*_: object) -> None:
        at_work.wait(60)
        while not may_end.wait(0.02):
            check_stop()

    for name in STAGES:
        monkeypatch.setitem(pipeline.STAGE_TASKS, name, work if name == "execute" else lambda *_: None)
    lost, other = (RunDir.create(settings.runs, spec(run_id=f"gsm8k-noop-{number}")) for number in (1, 2))
    with ThreadPoolExecutor(2) as threads:
        ends = [
            threads.submit(benchmark_run.fn, run, settings, cast(list[Mirror], [follower]), {0}, is_only=False)
            for run in (lost, other)
        ]
        at_work.wait(60)
        try:
            end(FileClaims(tmp_path / "store" / "claims"), lost.id, "cancelled")
            with pytest.raises(ClaimLostError):
                ends[0].result(60)
        finally:
            may_end.set()
        ends[1].result(60)
    assert sorted(follower) == [f"follow {lost.id}", f"follow {other.id}", f"leave {other.id}"]


def test_the_copy_of_a_stopped_run_is_signed_to_its_end(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine that takes it over an hour later could not sign these entries any more."""
    make_key(tmp_path / "key")
    sign = partial(sign_heads, signer=Signer(tmp_path / "key"))
    run, moved = RunDir.create(settings.runs, spec()), RunDir(tmp_path / "elsewhere" / "runs" / spec().run_id)
    elsewhere = Settings(tmp_path / "elsewhere", {"A2RL_STORE": f"file://{tmp_path}/store"})
    settings.environ.update(elsewhere.environ)

    def stop(*_: object) -> None:
        run.ledger.append(RunInterrupted(stage="setup"))
        raise InterruptedByUserError("stopped by the user")

    monkeypatch.setitem(pipeline.STAGE_TASKS, "setup", stop)
    with pytest.raises(InterruptedByUserError):
        benchmark_run.fn(run, settings, [], os.sched_getaffinity(0), sign=sign)
    with held(moved, elsewhere):
        assert [each.seq for each in read_signatures(moved.root)] == [len(moved.ledger.rows())] == [1]


@pytest.mark.parametrize("has_store", [False, True])
def test_of_two_that_begin_a_run_one_works_and_none_fails(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_store: bool
) -> None:
    if has_store:
        settings.environ["A2RL_STORE"] = f"file://{tmp_path}/store"
    run, begun, may_end = RunDir.create(settings.runs, spec()), list[str](), threading.Event()

    def stage(name: str) -> Callable[..., None]:
        def work(*_: Any) -> None:
            begun.append(name)
            may_end.wait(60)

        return work

    for name in STAGES:
        monkeypatch.setitem(pipeline.STAGE_TASKS, name, stage(name))
    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(begin, run, settings) for _ in range(2)]
        [loser] = wait(ends, return_when=FIRST_COMPLETED).done
        may_end.set()
        with pytest.raises(UsageError, match=f"is in use by process {os.getpid()}"):
            loser.result()
        [winner] = set(ends) - {loser}
        winner.result()
    assert begun == list(STAGES)
    assert (run.ledger.rows(), refusal(run)) == ([], "")


def _locks_held() -> int:
    """Returns how many lock files of GPUs this process has open."""
    return sum("/gpu-locks/" in str(file.resolve()) for file in Path("/proc/self/fd").iterdir())
