"""Tests that a run ends by itself: submissions at the deadline count, and no grader makes it wait for ever.

The services here are real processes; tests/other_service.py slows their copies down or gives them other graders.
"""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from a2rl.core.settings import Settings
from a2rl.grading.service_process import ServiceProcess
from a2rl.grading.submission_states import invalid_transition
from a2rl.models.checkpoint import weights_digest
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, Graded, GradingFailed, SubmissionAccepted, SubmissionReceived
from a2rl.run.ranking import best_submission
from a2rl.run.records import BaselineRecord, ExecuteRecord
from a2rl.run.rules import GradingLimits
from stages.grade import grade
from tests.other_service import SETTINGS
from tests.run_maker import REPOSITORY, WAIT_S, right_answers, wait_for
from tests.small_model import enlarge, trained_copy

SERVICE = "tests.other_service"
COPY_S, LEFT_S = 4.0, 1.5
SOON_S = 60.0
"""Far more than a run with these limits needs to end."""


@contextmanager
def server_of(run: RunDir, settings: Settings, **how: object) -> Iterator[ServiceProcess]:
    """Starts the service of a run, and keeps it alive as the stage does."""
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    (run.root / SETTINGS).write_text(json.dumps(how))
    with ServiceProcess(run, settings, module=SERVICE) as server:
        server.wait_until_ready()
        yield server


def set_remaining(run: RunDir, seconds: float) -> None:
    state = run.clock.read_state()
    consumed_s = state.consumed_s + run.clock.remaining_s() - seconds
    run.clock.path.write_text(state.model_copy(update={"consumed_s": consumed_s}).model_dump_json())


def end_at_the_deadline(run: RunDir) -> None:
    """Does what the stage does: it ends the agent, here with all of its files, and says so in the ledger."""
    wait_for(lambda: run.clock.remaining_s() <= 0)
    run.clock.stop()
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=run.spec.budget_s, reason="deadline", exit_code=None))
    shutil.rmtree(run.workspace / "output")


def kill_service(run: RunDir) -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if SERVICE in process.cmdline() and str(run.root) in process.cmdline():
                os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(
    "size", [pytest.param(0, marks=pytest.mark.heavy), pytest.param(2 << 30, marks=pytest.mark.slow)]
)
def test_a_last_moment_submission_with_a_slow_copy_counts(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path, tmp_path: Path, is_killed: bool, size: int
) -> None:
    run = new_run()
    base = shutil.copytree(base_model, tmp_path / "base")
    submission = trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    if size:
        enlarge(base, size, zeros=True)
        enlarge(submission, size)
        setup = json.loads(run.record_path("setup").read_text())
        run.record_path("setup").write_text(json.dumps(setup | {"base_model": str(base)}))
    digest = weights_digest(submission)
    with server_of(run, settings, copy_s=COPY_S, **({"block": 1 << 20} if size else {})) as server:
        set_remaining(run, LEFT_S)
        answer = httpx.post(f"{server.url}/submit?wait=0", json={"model_path": "output/v1"}, timeout=WAIT_S)
        assert answer.status_code == 202
        end_at_the_deadline(run)
        assert run.ledger.events(SubmissionReceived)
        assert not run.ledger.events(SubmissionAccepted), "the copy takes longer than the deadline"
        wait_for(lambda: list(run.checkpoints.glob(".incoming-*/*")))
        if is_killed:
            kill_service(run)
        server.drain()
    [accepted] = run.ledger.events(SubmissionAccepted)
    assert accepted.weights_digest == digest
    assert accepted.elapsed_s <= run.spec.budget_s
    best = best_submission(run.ledger)
    assert best is not None
    assert best.score.correct == right_answers(run.checkpoint(digest), 4)
    assert invalid_transition(run.ledger.entries(), finished=True) == ""
    assert {path.name for path in run.checkpoints.iterdir()} == {digest[:16]}, "no half copy stays"


@pytest.mark.parametrize(
    ("do", "limits", "says"),
    [
        pytest.param("hang", {"at_least_s": 1.0}, "longer than its limit of 1 s", marks=pytest.mark.heavy),
        pytest.param("stop", {"silence_s": 1.0}, "no sign of life for 1 s", marks=pytest.mark.heavy),
        pytest.param(
            "out of memory", {"memory_wait_s": 0.0}, "ran out of memory; leave it more", marks=pytest.mark.heavy
        ),
        pytest.param("killed", {}, "probably because the machine ran out of memory", marks=pytest.mark.heavy),
        ("die", {}, "ended with its worker"),
    ],
)
def test_a_run_whose_grader_never_grades_ends_with_the_reason(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path, do: str, limits: dict[str, float], says: str
) -> None:
    run = new_run(options={"do": do}, grading_limits=GradingLimits(**({"times_baseline": 1e-6} | limits)))
    record = run.need("baseline", BaselineRecord)
    run.write("baseline", record.model_copy(update={"graded_s": 0.1}))
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    began = time.monotonic()
    with server_of(run, settings, worker="tests.fake_worker") as server:
        posted = threading.Thread(target=_submit, args=(server.url,))
        posted.start()
        wait_for(lambda: run.ledger.events(GradingFailed))
        posted.join(WAIT_S)
        run.clock.stop()
        run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="finished", exit_code=0))
        server.drain()
    run.write("execute", ExecuteRecord(seconds=9, ended="finished", exit_code=0, elapsed_s=9, waited_s=0, attempts=1,
                                       submissions=1, refused=0))  # fmt: skip
    result = grade(run, settings)
    took_s = time.monotonic() - began
    assert (result.verdict, result.final) == ("failed", None)
    assert says in result.reason
    assert "\n" not in result.reason
    [graded] = run.ledger.events(Graded)
    assert graded.result.score is None, "a failure is never a number"
    assert took_s < SOON_S
    print(f"{do}: ended after {took_s:.1f} s")  # noqa: T201 - a figure that pytest -s shows


def _submit(url: str) -> None:
    answer = httpx.post(f"{url}/submit", json={"model_path": "output/v1"}, timeout=WAIT_S)
    assert answer.status_code == 503
