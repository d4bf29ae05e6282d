"""Stage `grade`: the final result. Under the strict protocol, the private split grades the best submission, once."""

import time

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import file_digest
from a2rl.core.settings import Settings
from a2rl.grading.grades import grade_job, grade_on_all_gpus, judge_failed
from a2rl.grading.job import GradeResult
from a2rl.grading.submission_states import prune
from a2rl.results.figures import cross_fitted_gain, improvement_of
from a2rl.run.directory import RunDir
from a2rl.run.events import PrivateGraded
from a2rl.run.failure import failed, why_no_result
from a2rl.run.inputs import check_inputs
from a2rl.run.ranking import best_submission, chosen_among
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, judge_record, verdict_of


def grade(run: RunDir, settings: Settings) -> GradeRecord:
    """Chooses the best submission and scores it on the final items.

    Raises:
        InfrastructureError: The final grading failed; calling the stage again repeats it.
    """
    if (done := run.read("grade", GradeRecord)) is not None:
        return done
    started = time.monotonic()
    check_inputs(run)
    record = _result(run, settings)
    run.write("grade", record := record.model_copy(update={"seconds": time.monotonic() - started}))
    prune(run)
    return record


def _result(run: RunDir, settings: Settings) -> GradeRecord:
    """Returns the record, without the duration of the stage."""
    base, executed = run.need("baseline", BaselineRecord), run.need("execute", ExecuteRecord)
    baseline = base.private if run.spec.protocol == "strict" else base.total
    if reason := why_no_result(run, executed):
        return failed(run, reason)
    best = best_submission(run.ledger)
    if best is None and executed.submissions:
        return failed(run, f"none of its {executed.submissions} submissions could be graded: {_last_problem(run)}")
    if best is None:
        return GradeRecord(seconds=0, verdict="no submission", baseline=baseline, judge=judge_record(run))
    submission, public = best
    result = _final_result(run, settings, submission.weights_digest)
    if result.score.score is None:
        return failed(run, result.score.reason)
    difference = improvement_of(run, result.items)
    return GradeRecord(
        seconds=0,
        verdict=verdict_of(result.score, difference),
        submission_id=submission.submission_id,
        public=public,
        final=result.score,
        baseline=baseline,
        improvement=difference.points if difference else None,
        improvement_ci=difference.ci if difference else None,
        chosen_among=chosen_among(run),
        cross_fitted=cross_fitted_gain(run),
        judge=judge_record(run),
    )


def _last_problem(run: RunDir) -> str:
    """Returns the reason in the last grade. It is called if no grade has a score."""
    reasons = [grade.result.reason for grade in run.ledger.grades().values()]
    return reasons[-1] if reasons else "there are no grades"


def _final_result(run: RunDir, settings: Settings, digest: str) -> GradeResult:
    """Grades the submission on the final items. An existing grade is reused."""
    split = run.spec.final_split
    job = grade_job(run, run.checkpoint(digest), split, run.items(digest, split))
    result = grade_on_all_gpus(job, run, settings)
    if judge_failed(job, result):
        job.result.unlink()
        raise InfrastructureError(
            f"no result yet: {result.score.reason}; `a2rl resume {run.id}` asks the judge for the missing answers"
        )
    if run.spec.protocol == "strict":
        event = PrivateGraded(weights_digest=digest, result=result.score, items_digest=file_digest(job.result))
        run.ledger.append_unless(event, lambda _: True)
    return result
