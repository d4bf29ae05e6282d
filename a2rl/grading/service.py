"""The grading service of one run: takes submissions, has each distinct checkpoint graded once, keeps the ledger.

A submission counts from the moment it is in the ledger; whatever dies after that, a restarted service finds it there
and has it graded. Answers are computed from the ledger alone.
"""

import shutil
import threading
import uuid
from concurrent.futures import Future
from pathlib import Path

from pydantic import BaseModel

from a2rl.checkpoint import copy_submission, weights_digest
from a2rl.code_history import snapshot_code
from a2rl.errors import A2rlError, InfrastructureError, Interrupted, InvalidSubmission
from a2rl.events import AgentStarted, BaselineKnown, Graded, GradingFailed, SubmissionAccepted, SubmissionRefused
from a2rl.files import file_digest
from a2rl.grading.job import GradeJob, GradeResult, selected_ids
from a2rl.grading.pool import GraderPool
from a2rl.ranking import best_submission
from a2rl.records import SetupRecord
from a2rl.run import RunDir
from a2rl.score import Interval, TaskScore
from a2rl.task import Split


class BudgetSpent(InvalidSubmission):
    """The deadline has passed or the quota of submissions is used up."""


class Best(BaseModel):
    """The best submission so far."""

    submission_id: int
    score: float


class SubmitAnswer(BaseModel):
    """What an agent learns about a submission; the reference's keys, and two of our own."""

    submission_id: int
    score: float
    baseline_score: float | None
    improvement: float | None
    best: Best | None
    total_submissions: int
    ci: Interval | None
    quota_left: int | None


class TimeAnswer(BaseModel):
    """The run's clock, in the reference's words."""

    start_time: int | None
    timeout_s: int
    last_submit_time: int | None
    end_time: int | None
    now: int
    remaining: float


def grade_job(run: RunDir, root: Path, model: Path, split: Split, result: Path) -> GradeJob:
    """The job that grades a model folder for a run."""
    spec = run.spec
    return GradeJob(
        root=root,
        task=spec.task,
        variant=spec.variant,
        hidden=run.need("setup", SetupRecord).hidden,
        model=model,
        split=split,
        split_seed=spec.split_seed,
        backend=spec.backend,
        exact=spec.exact,
        options=spec.options,
        judge=spec.judge,
        result=result,
        log=run.logs / "grader.log",
    )


def judge_failed(job: GradeJob, result: GradeResult) -> bool:
    """Whether there is no score because the judge, which nobody here runs, did not answer; later it may."""
    return job.judge is not None and result.score.score is None and result.score.errored > 0


class GradingService:
    """Accepts and grades; safe to call from several threads."""

    def __init__(self, run: RunDir, root: Path, pool: GraderPool) -> None:
        self._run = run
        self._root = root
        self._base_model = run.need("setup", SetupRecord).base_model
        self._pool = pool
        self._spec = run.spec
        self._public = self._spec.public_split
        self._lock = threading.Lock()
        self._graded: dict[str, Future[Graded]] = {}
        self._recover()

    def submit(self, model_path: str) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Copies, checks and queues a submission.

        Raises:
            InvalidSubmission: it cannot be graded; recorded as refused.
            InfrastructureError: the grader's machine failed; nothing was recorded, submitting again is right.
        """
        elapsed_s = self._run.clock.elapsed_s()
        try:
            self._check_budget()
            incoming = self._run.checkpoints / f".incoming-{uuid.uuid4().hex}"
            try:
                copy_submission(self._run.workspace, model_path, incoming, self._base_model)
                digest = weights_digest(incoming)
                with self._lock:
                    self._check_budget(ignore_clock=True)  # others may have used up the quota meanwhile
                    return self._accept(model_path, elapsed_s, incoming, digest)
            finally:
                shutil.rmtree(incoming, ignore_errors=True)
        except InvalidSubmission as refusal:
            reason = str(refusal)
            self._run.ledger.append(SubmissionRefused(elapsed_s=elapsed_s, model_path=model_path[:500], reason=reason))
            raise
        except OSError as error:  # such as the base model's folder taken away or made anew beside the run
            raise InfrastructureError(f"the grader could not check the submission: {error}; submit again") from error

    def answer(self, submission_id: int) -> SubmitAnswer:
        """What is known now about a submission that was graded."""
        accepted = self._run.ledger.events(SubmissionAccepted)
        this = self._run.ledger.grades()[accepted[submission_id - 1].weights_digest]
        if this.result.score is None:
            raise InfrastructureError(
                f"submission {submission_id} is kept, but could not be graded: {this.result.reason}"
            )
        best = best_submission(self._run.ledger)
        return SubmitAnswer(
            submission_id=submission_id,
            score=this.result.score,
            baseline_score=self._baseline_score(),
            improvement=this.improvement,
            best=Best(submission_id=best.submission.submission_id, score=best.score.score or 0.0) if best else None,
            total_submissions=len(accepted),
            ci=this.result.ci,
            quota_left=self._quota_left(len(accepted)),
        )

    def time(self, now: float) -> TimeAnswer:
        """The clock, as the agent may ask for it; `now` is Unix time."""
        entries = self._run.ledger.entries()
        state = self._run.clock.state
        remaining = max(0.0, self._run.clock.remaining_s())
        submits = [entry.at for entry in entries if isinstance(entry.event, SubmissionAccepted)]
        running = state.running_since is not None
        return TimeAnswer(
            start_time=int(state.started_at) if state.started_at else None,
            timeout_s=int(state.budget_s),
            last_submit_time=int(submits[-1]) if submits else None,
            end_time=int(now + remaining) if running else None,
            now=int(now),
            remaining=round(remaining, 1),
        )

    def _check_budget(self, ignore_clock: bool = False) -> None:
        entries = self._run.ledger.entries()
        if not any(isinstance(entry.event, AgentStarted) for entry in entries):
            raise BudgetSpent("the run has not started")
        if not ignore_clock and (self._run.clock.state.running_since is None or self._run.clock.remaining_s() <= 0):
            raise BudgetSpent("the budget has ended; submissions are no longer taken")
        if self._quota_left(sum(isinstance(entry.event, SubmissionAccepted) for entry in entries)) == 0:
            raise BudgetSpent(f"the quota of {self._spec.max_submissions} submissions is used up")

    def _quota_left(self, accepted: int) -> int | None:
        return None if self._spec.max_submissions is None else max(0, self._spec.max_submissions - accepted)

    def _accept(
        self, model_path: str, elapsed_s: float, incoming: Path, digest: str
    ) -> "tuple[SubmissionAccepted, Future[Graded]]":
        kept = self._run.checkpoint(digest)
        if not kept.exists():
            incoming.rename(kept)
        number = len(self._run.ledger.events(SubmissionAccepted)) + 1
        revision = snapshot_code(
            self._run.workspace / "code", self._run.code, f"submission {number}: {model_path[:200]}"
        )
        event = SubmissionAccepted(
            submission_id=number,
            elapsed_s=elapsed_s,
            model_path=model_path[:500],
            weights_digest=digest,
            code_revision=revision,
        )
        self._run.ledger.append(event)
        return event, self._grade(digest)

    def _grade(self, digest: str) -> "Future[Graded]":
        """The grade of a checkpoint, asked for once however often it was submitted."""
        if digest in self._graded:
            return self._graded[digest]
        outcome: Future[Graded] = Future()
        self._graded[digest] = outcome
        known = self._run.ledger.grades().get(digest)
        if known is not None:
            outcome.set_result(known)
            return outcome
        run, split = self._run, self._public
        job = grade_job(run, self._root, run.checkpoint(digest), split, run.items(digest, split))
        self._pool.submit(job).add_done_callback(lambda done: self._record(job, digest, done, outcome))
        return outcome

    def _record(self, job: GradeJob, digest: str, done: "Future[GradeResult]", outcome: "Future[Graded]") -> None:
        error, running = done.exception(), self._run.clock.state.running_since is not None
        if isinstance(error, Interrupted):
            outcome.set_exception(error)  # the service ends; the next one grades it
            return
        if running and error is None and judge_failed(job, done.result()):
            error = InfrastructureError(done.result().score.reason)
            job.result.unlink(missing_ok=True)  # the judgements that were made are kept, and paid for once
        try:
            if running and error is not None:
                self._fail_for_now(digest, error, outcome)
                return
            event = self._graded_event(job, digest, done)
            self._run.ledger.append_unless(event, lambda other: other.weights_digest == digest)
        except (A2rlError, OSError) as failure:
            self._graded.pop(digest, None)  # submitting it again tries again
            outcome.set_exception(InfrastructureError(f"the grade could not be recorded: {failure}; submit again"))
        else:
            outcome.set_result(event)

    def _fail_for_now(self, digest: str, error: BaseException, outcome: "Future[Graded]") -> None:
        """Beside an agent that trains on the same device a grade may fail that succeeds later."""
        reason, elapsed_s = str(error), self._run.clock.elapsed_s()
        self._run.ledger.append(GradingFailed(weights_digest=digest, elapsed_s=elapsed_s, reason=reason))
        self._graded.pop(digest, None)
        kept = "the submission is kept and graded when the agent is gone, or now if you submit it again"
        outcome.set_exception(InfrastructureError(f"grading failed: {reason}; {kept}"))

    def _graded_event(self, job: GradeJob, digest: str, done: "Future[GradeResult]") -> Graded:
        elapsed_s, error = self._run.clock.elapsed_s(), done.exception()
        if error is not None:
            total = len(selected_ids(job.task, job.hidden, job.split, job.split_seed))
            failed = TaskScore(
                score=None, reason=str(error), total=total, correct=0, wrong=0, truncated=0, errored=total
            )
            return Graded(weights_digest=digest, elapsed_s=elapsed_s, result=failed, improvement=None, items_digest="")
        score, baseline = done.result().score, self._baseline_score()
        improvement = None if score.score is None or baseline is None else score.score - baseline
        return Graded(
            weights_digest=digest,
            elapsed_s=elapsed_s,
            result=score,
            improvement=improvement,
            items_digest=file_digest(job.result),
        )

    def _baseline_score(self) -> float | None:
        known = self._run.ledger.events(BaselineKnown)
        return known[-1].public.score if known else None

    def _recover(self) -> None:
        """Takes up what an earlier service of this run left: half copies go, accepted submissions get their grade."""
        self._run.checkpoints.mkdir(exist_ok=True)
        for leftover in self._run.checkpoints.glob(".incoming-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for event in self._run.ledger.events(SubmissionAccepted):
            self._grade(event.weights_digest)
