"""A run that has no result has one: it failed, for a reason that is written down, and its gain counts as zero.

What the machine did wrong is tried again first. A run that the user stopped, or whose settings are wrong, has not
failed. `a2rl resume` takes up one whose stages could not be finished; the failure then stays in the ledger alone.
"""

from a2rl.errors import A2rlError
from a2rl.events import ProcessesSurvived, RunFailed
from a2rl.records import BaselineRecord, ExecuteRecord, GradeRecord
from a2rl.run import RunDir
from a2rl.score import TaskScore

MAX_REASON = 2000
NO_BASELINE = TaskScore(
    score=None, reason="the base model was not graded", total=0, correct=0, wrong=0, truncated=0, errored=0
)


def record_failure(run: RunDir, stage: str, error: BaseException) -> GradeRecord:
    """Writes down that a stage could not be finished, so that the run has a result.

    Raises:
        InfrastructureError: not even that can be written.
    """
    told = str(error) if isinstance(error, A2rlError) else f"{type(error).__name__}: {error}"
    reason = " ".join(f"{stage}: {told}".split())[:MAX_REASON]
    try:
        run.ledger.append(RunFailed(stage=stage, reason=reason))
    except A2rlError as second:  # the ledger itself may be what has failed
        reason = f"{reason}; {second}"[:MAX_REASON]
    return run.write("grade", failed(run, reason, stage))


def failed(run: RunDir, reason: str, stage: str | None = None, seconds: float = 0.0) -> GradeRecord:
    """The record of a run without a result.

    Args:
        stage: that could not be finished; None: all were, and resuming the run would change nothing.
    """
    try:
        base = run.read("baseline", BaselineRecord)
    except A2rlError:
        base = None
    before = NO_BASELINE if base is None else base.private if run.spec.protocol == "strict" else base.total
    return GradeRecord(seconds=seconds, verdict="failed", reason=reason, failed_stage=stage, baseline=before)


def forget_failure(run: RunDir) -> None:
    """Lets a run go on whose stages could not be finished: only the ledger keeps the failure."""
    try:
        record = run.read("grade", GradeRecord)
    except A2rlError:
        return  # whoever needs the record reports it
    if record is not None and record.failed_stage is not None:
        for stage in ("grade", "report"):
            run.record_path(stage).unlink(missing_ok=True)


def why_no_result(run: RunDir, executed: ExecuteRecord) -> str:
    """Why a run whose stages were finished has no result all the same; empty if nothing stands against one."""
    survived = [each for event in run.ledger.events(ProcessesSurvived) for each in event.processes]
    if survived:
        listing = ", ".join(f"{pid} {name}" for pid, name in survived[:5])
        return f"{len(survived)} of the agent's processes could not be ended with it ({listing})"
    if executed.ended == "unavailable" and not executed.submissions:
        return f"the agent could not be started: {executed.why}"
    return ""
