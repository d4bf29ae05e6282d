"""Tests runs that cannot be finished: their result is `failed`, with a reason and a gain of zero."""

import json
import os
import threading
from collections.abc import Callable

import pytest

from a2rl.cli.results import run_object, sentence, state_of
from a2rl.core import processes
from a2rl.core.errors import (
    InfrastructureError,
    IntegrityError,
    InterruptedByUserError,
    MissingInputError,
    RunFailedError,
    UsageError,
)
from a2rl.core.settings import Settings
from a2rl.results.report.page import write_report
from a2rl.results.verify import verify_run
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, ProcessesSurvived
from a2rl.run.events import RunFailed as Failed
from a2rl.run.failure import forget_failure, record_failure
from a2rl.run.owner import owned
from a2rl.run.records import STAGES, ExecuteRecord, GradeRecord
from a2rl.scoring.score import summarise
from flows import pipeline
from stages.grade import grade
from tests.run_maker import end_agent
from tests.written_ledger import accepted, graded

RECORDS = "the records follow from the ledger"


def records_problem(run: RunDir) -> str:
    checks = verify_run(run, tracker=None)
    return next(check.problem for check in checks if check.what == RECORDS)


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception], None]:
    """Makes one stage fail, as Prefect reports it when all retries are used up; the other stages do nothing."""
    for name in STAGES:
        monkeypatch.setitem(pipeline.STAGE_TASKS, name, lambda *_: None)

    def fail(name: str, error: Exception) -> None:
        def stage(*_: object) -> None:
            raise error

        monkeypatch.setitem(pipeline.STAGE_TASKS, name, stage)

    return fail


def run_stages(run: RunDir, settings: Settings) -> None:
    pipeline.benchmark_run.fn(run, settings, [], os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "error",
    [
        InfrastructureError("the agent's supervisor was killed; the agent was ended with it"),
        pytest.param(PermissionError(13, "Permission denied", "workspace"), marks=pytest.mark.heavy),
        pytest.param(RecursionError("a hostile transcript"), marks=pytest.mark.heavy),
        pytest.param(OSError(28, "No space left on device"), marks=pytest.mark.heavy),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_ends_a_stage_for_good_is_a_failed_run(
    run: RunDir, settings: Settings, stages: Callable[[str, Exception], None], error: Exception
) -> None:
    """The run has the reason."""
    stages("execute", error)
    with pytest.raises(RunFailedError) as told:
        run_stages(run, settings)
    assert len(str(told.value).splitlines()) == 1
    record = run.need("grade", GradeRecord)
    assert (record.verdict, record.failed_stage, record.improvement) == ("failed", "execute", None)
    assert str(error) in record.reason
    assert [event.stage for event in run.ledger.events(Failed)] == ["execute"]
    assert records_problem(run) == ""
    assert run.report.exists()


def test_an_error_that_nobody_expected_leaves_its_traceback(
    run: RunDir, settings: Settings, stages: Callable[[str, Exception], None]
) -> None:
    stages("grade", IndexError("list index out of range"))
    with pytest.raises(RunFailedError, match=r"grade: IndexError: list index out of range \(see logs/pipeline.jsonl\)"):
        run_stages(run, settings)
    [line] = map(json.loads, (run.logs / "pipeline.jsonl").read_text().splitlines())
    assert line["what"] == "grade"
    assert __file__ in line["traceback"]


def test_an_expected_error_has_no_traceback(
    run: RunDir, settings: Settings, stages: Callable[[str, Exception], None]
) -> None:
    stages("execute", InfrastructureError("the grading service died 20 times"))
    with pytest.raises(RunFailedError):
        run_stages(run, settings)
    assert "traceback" not in (run.logs / "pipeline.jsonl").read_text()


def test_a_failed_run_is_shown_as_one_everywhere(run: RunDir, settings: Settings) -> None:
    record_failure(run, "execute", InfrastructureError("the service is <b>gone</b>"))
    facts = run_object(run)
    assert (facts["verdict"], facts["gain"], facts["improvement"]) == ("failed", 0.0, None)
    assert "the service is" in facts["reason"]
    assert json.dumps(facts)
    assert state_of(run) == "failed in execute"
    assert "the run failed" in sentence(run)
    assert "gain of zero" in sentence(run)
    write_report(run, settings)
    page = run.report.read_text()
    assert "The run failed: execute: the service is &lt;b&gt;gone" in page
    assert "gain of zero" in page


def test_a_run_that_failed_before_its_baseline_has_a_result_too(run: RunDir) -> None:
    run.record_path("baseline").unlink()
    record = record_failure(run, "setup", InfrastructureError("the hub cannot be reached"))
    assert record.baseline.score is None
    assert "hub" in sentence(run)
    assert run_object(run)["baseline"] is None


def test_a_run_whose_ledger_is_gone_has_a_result_too(run: RunDir) -> None:
    run.ledger.path.write_bytes(b"garbage " * 1000)
    for path in run.root.glob("ledger.db-*"):
        path.unlink()
    record = record_failure(run, "execute", InfrastructureError("x"))
    assert record.verdict == "failed"
    assert "corrupt" in record.reason


def test_resuming_tries_what_failed_again(
    run: RunDir, settings: Settings, stages: Callable[[str, Exception], None]
) -> None:
    stages("execute", InfrastructureError("the disk is full"))
    with pytest.raises(RunFailedError):
        run_stages(run, settings)
    stages("execute", InterruptedByUserError("stopped by the user"))
    with pytest.raises(InterruptedByUserError):
        run_stages(run, settings)
    assert run.read("grade", GradeRecord) is None
    assert len(run.ledger.events(Failed)) == 1


def test_a_result_is_not_forgotten_when_its_run_is_resumed(run: RunDir, settings: Settings) -> None:
    end_agent(run)
    grade(run, settings)
    forget_failure(run)
    assert run.need("grade", GradeRecord).verdict == "no submission"


def test_what_the_user_does_is_no_failure(
    run: RunDir,
    settings: Settings,
    stages: Callable[[str, Exception], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages("setup", UsageError("no such model"))
    with pytest.raises(UsageError):
        run_stages(run, settings)
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(processes, "STOP", stop)
    stages("setup", InfrastructureError("cut off in the middle"))
    with pytest.raises(InterruptedByUserError):
        run_stages(run, settings)
    with owned(run), pytest.raises(UsageError, match="in use by"):
        run_stages(run, settings)
    assert run.read("grade", GradeRecord) is None
    assert run.ledger.events(Failed) == []


def test_a_run_without_its_base_model_has_no_result_at_all(
    run: RunDir, settings: Settings, stages: Callable[[str, Exception], None]
) -> None:
    """It is no failed run either."""
    stages("grade", MissingInputError("the base model is not there"))
    with pytest.raises(MissingInputError):
        run_stages(run, settings)
    assert run.read("grade", GradeRecord) is None
    assert run.ledger.events(Failed) == []


def test_a_stage_with_its_record_is_done_whatever_prefect_says(
    run: RunDir, settings: Settings, stages: Callable[[str, Exception], None]
) -> None:
    end_agent(run)
    stages("execute", ConnectionError("the Prefect server is gone"))
    run_stages(run, settings)


def test_processes_that_outlive_their_agent_leave_no_result(run: RunDir, settings: Settings) -> None:
    run.ledger.append(ProcessesSurvived(attempt=1, processes=((4711, "a"), (4712, "b"))))
    end_agent(run)
    record = grade(run, settings)
    assert (record.verdict, record.failed_stage, record.improvement) == ("failed", None, None)
    assert "4711" in record.reason
    assert records_problem(run) == ""
    write_report(run, settings)
    assert "2 of its processes could not be killed" in run.report.read_text()


def test_submissions_that_could_not_be_graded_are_a_failed_run(run: RunDir, settings: Settings) -> None:
    """None of them could be graded."""
    run.ledger.append(accepted(1, 1))
    score = summarise([]).model_copy(update={"score": None, "reason": "the grader ran out of memory"})
    run.ledger.append(graded(f"{1:064}", 2, score))
    end_agent(run)
    record = grade(run, settings)
    assert record.verdict == "failed"
    assert "out of memory" in record.reason
    assert records_problem(run) == ""


def test_an_agent_that_could_not_be_started_is_a_failed_run(run: RunDir, settings: Settings) -> None:
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=0, reason="unavailable", exit_code=None, why="no key"))
    record = ExecuteRecord(
        seconds=0, ended="unavailable", exit_code=None, why="no key", elapsed_s=0, waited_s=0, attempts=1,
        submissions=0, refused=0,
    )  # fmt: skip
    run.write("execute", record)
    assert (grade(run, settings).verdict, run.need("grade", GradeRecord).improvement) == ("failed", None)
    assert "no key" in run.need("grade", GradeRecord).reason


def test_a_failure_that_the_ledger_does_not_know_is_found(run: RunDir, settings: Settings) -> None:
    end_agent(run)
    record = record_failure(run, "execute", InfrastructureError("x"))
    run.write("grade", record.model_copy(update={"failed_stage": "baseline"}))
    assert "the ledger does not" in records_problem(run)


def test_what_waits_to_be_copied_leaves_a_run_readable(run: RunDir) -> None:
    """A file of the agent's that has a second name there may be a hole; a checkpoint that was copied must not."""
    run.checkpoint("d" * 64).mkdir(parents=True)
    (waiting := run.checkpoints / ".received-1").mkdir()
    (waiting / "model.safetensors").touch()
    os.truncate(waiting / "model.safetensors", 2 << 30)
    run.check_plain()
    (waiting / "model.safetensors").rename(run.checkpoint("d" * 64) / "model.safetensors")
    with pytest.raises(IntegrityError, match="empty giant"):
        run.check_plain()
