"""Stage `grade`: the result. Under the strict protocol the best submission is scored on the private split, once."""

import time

from a2rl.comparison import improvement_of
from a2rl.errors import InfrastructureError
from a2rl.events import PrivateGraded
from a2rl.failure import failed, why_no_result
from a2rl.files import file_digest
from a2rl.grading.job import GradeResult
from a2rl.grading.pool import grade_now
from a2rl.grading.service import grade_job, judge_failed
from a2rl.inputs import check_inputs
from a2rl.ranking import best_submission, chosen_among
from a2rl.records import BaselineRecord, ExecuteRecord, GradeRecord, verdict_of
from a2rl.run import RunDir
from a2rl.settings import Settings


def grade(run: RunDir, settings: Settings) -> GradeRecord:
    """Chooses the submission that counts and scores it on the items that decide.

    Raises:
        InfrastructureError: the final grading failed; calling the stage again repeats it.
    """
    if (done := run.read("grade", GradeRecord)) is not None:
        return done
    started, spec = time.monotonic(), run.spec
    check_inputs(run)
    base, executed = run.need("baseline", BaselineRecord), run.need("execute", ExecuteRecord)
    before = base.private if spec.protocol == "strict" else base.total
    if reason := why_no_result(run, executed):
        return run.write("grade", failed(run, reason, seconds=time.monotonic() - started))
    best = best_submission(run.ledger)
    if best is None and executed.submissions:
        reason = f"none of its {executed.submissions} submissions could be graded: {_last_problem(run)}"
        return run.write("grade", failed(run, reason, seconds=time.monotonic() - started))
    if best is None:
        nothing = GradeRecord(seconds=time.monotonic() - started, verdict="no submission", baseline=before)
        return run.write("grade", nothing)
    submission, public = best
    result = _final_result(run, settings, submission.weights_digest)
    difference = improvement_of(run, result.items)
    record = GradeRecord(
        seconds=time.monotonic() - started,
        verdict=verdict_of(result.score, difference),
        reason=result.score.reason if result.score.score is None else "",
        submission_id=submission.submission_id,
        public=public,
        final=result.score,
        baseline=before,
        improvement=difference.points if difference else None,
        improvement_ci=difference.ci if difference else None,
        chosen_among=chosen_among(run),
    )
    return run.write("grade", record)


def _last_problem(run: RunDir) -> str:
    """Of the grades without a score."""
    return next((grade.result.reason for grade in reversed(run.ledger.grades().values())), "there are no grades")


def _final_result(run: RunDir, settings: Settings, digest: str) -> GradeResult:
    split = run.spec.final_split
    job = grade_job(run, settings.root, run.checkpoint(digest), split, run.items(digest, split))
    result = grade_now(job, settings)
    if judge_failed(job, result):
        job.result.unlink()
        raise InfrastructureError(
            f"no result yet: {result.score.reason}; `a2rl resume {run.id}` asks the judge for what is missing"
        )
    if run.spec.protocol == "strict":
        event = PrivateGraded(weights_digest=digest, result=result.score, items_digest=file_digest(job.result))
        run.ledger.append_unless(event, lambda _: True)
    return result
