"""Failed runs: a run whose stages cannot be finished gets a record that says why; its gain counts as zero.

A run that has a result keeps it, whatever happens later: the stages after `grade` only judge it and show it.

Infrastructure errors are retried first. A run that the user stopped, or whose settings are wrong, has not failed.
`a2rl resume` continues a failed run; the failure then remains only in the ledger.
"""

from contextlib import suppress

from a2rl.core.errors import A2rlError
from a2rl.core.event_log import EventLog, log_failure
from a2rl.core.files import write_atomically
from a2rl.run.directory import UNREADABLE, RunDir, aside_log, last_closing, pipeline_log
from a2rl.run.events import ProcessesSurvived, RunClosed, RunFailed
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, judge_record
from a2rl.scoring.score import TaskScore

MAX_REASON = 2000
REFUSED = "refused.txt"
NO_BASELINE = TaskScore(
    score=None, reason="the base model was not graded", total=0, correct=0, wrong=0, truncated=0, errored=0
)


def record_failure(run: RunDir, stage: str, error: BaseException) -> GradeRecord:
    """Records in the ledger, and in the run's grade record, that a stage could not be finished.

    Returns:
        The grade record; if the run already has a result, that one.

    Raises:
        InfrastructureError: The record cannot be written either.
        IntegrityError: There is a grade record that cannot be read, so it may be a result.
    """
    log_failure(log := log_of(run), stage, error)
    if (result := run.read("grade", GradeRecord)) is not None and result.is_final:
        return result
    unexpected = f"{type(error).__name__}: {error} (see logs/{log.path.name})"
    message = str(error) if isinstance(error, A2rlError) else unexpected
    reason = " ".join(f"{stage}: {message}".split())[:MAX_REASON]
    try:
        run.ledger.append(RunFailed(stage=stage, reason=reason))
    except A2rlError as second:  # the ledger itself may be what has failed
        reason = f"{reason}; {second}"[:MAX_REASON]
    return run.write("grade", failed(run, reason, stage))


def log_of(run: RunDir) -> EventLog:
    """Returns the log for an error of the pipeline: of a run that is closed, even with a failure, not the one that its
    manifest has."""
    with suppress(*UNREADABLE):  # a ledger that has failed is an error to be logged, too
        if last_closing(run) is not None:
            return aside_log(run)
    return pipeline_log(run)


def failed(run: RunDir, reason: str, stage: str | None = None) -> GradeRecord:
    """Returns the record of a run without a result.

    Args:
        stage: The stage that could not be finished; None if all were, so that resuming the run changes nothing.
    """
    return GradeRecord(
        seconds=0.0,
        verdict="failed",
        reason=reason,
        failed_stage=stage,
        baseline=_baseline_score(run),
        judge=judge_record(run),
    )


def mark_refused(run: RunDir, error: A2rlError) -> None:
    """Marks a run that cannot begin because its settings are wrong, so that it is not taken for a new one."""
    with suppress(A2rlError):
        write_atomically(run.root / REFUSED, f"{error}\n")


def refusal(run: RunDir) -> str:
    """Returns why a run could not begin; empty if it was not refused."""
    try:
        return (run.root / REFUSED).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""


def is_unfinished(run: RunDir) -> bool:
    """Says whether `a2rl resume` has something to do: a run has ended when it is judged and closed with its result.

    A run that failed in a stage has a report, too, and was closed with that failure. One that cannot be read counts as
    unfinished: whoever resumes it is told why.
    """
    try:
        run.check_plain()
        closings = run.ledger.events(RunClosed)
    except UNREADABLE:
        return True
    return not closings or not closings[-1].is_final or not run.record_path("validity").exists()


def _baseline_score(run: RunDir) -> TaskScore:
    try:
        baseline = run.read("baseline", BaselineRecord)
    except A2rlError:
        return NO_BASELINE
    if baseline is None:
        return NO_BASELINE
    return baseline.private if run.spec.protocol == "strict" else baseline.total


def forget_failure(run: RunDir) -> None:
    """Removes the failure record of a run, so that its stages run again; the ledger keeps the failure."""
    (run.root / REFUSED).unlink(missing_ok=True)
    try:
        record = run.read("grade", GradeRecord)
    except A2rlError:
        return  # an unreadable record is reported by the stage that needs it
    if record is not None and not record.is_final:
        for stage in ("report", "validity", "grade"):  # if this is interrupted, the next try finishes it
            run.record_path(stage).unlink(missing_ok=True)


def why_no_result(run: RunDir, executed: ExecuteRecord) -> str:
    """Says why a run has no result although its stages were finished; empty if it can have one."""
    survived = [each for event in run.ledger.events(ProcessesSurvived) for each in event.processes]
    if survived:
        listing = ", ".join(f"{pid} {name}" for pid, name in survived[:5])
        return f"{len(survived)} of the agent's processes could not be ended with it ({listing})"
    if executed.ended == "unavailable" and not executed.submissions:
        return f"the agent could not be started: {executed.why}"
    return ""
