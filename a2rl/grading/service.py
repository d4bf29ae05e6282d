"""The grading service of one run: takes submissions, has each distinct checkpoint graded once, keeps the ledger.

A submission counts from the moment it is in the ledger as received; whatever dies after that, a restarted service finds
it there, copies it and has it graded. Answers are computed from the ledger alone.
"""

import shutil
import threading
from concurrent.futures import Future
from pathlib import Path

from pydantic import BaseModel

from a2rl.errors import A2rlError, InfrastructureError, Interrupted, InvalidSubmission
from a2rl.events import BaselineKnown, Graded, GradingFailed, SubmissionAccepted, SubmissionReceived
from a2rl.files import file_digest
from a2rl.grading.chain import is_agent_at_work, ungraded
from a2rl.grading.job import GradeJob, GradeResult, selected_ids
from a2rl.grading.limits import LONGEST_S
from a2rl.grading.pool import GraderPool, GradingError
from a2rl.grading.quota import quota_left
from a2rl.grading.refusals import MAX_REASON, bounded
from a2rl.grading.submissions import Submissions
from a2rl.inputs import hidden_of
from a2rl.ranking import best_submission
from a2rl.records import BaselineRecord
from a2rl.run import RunDir
from a2rl.score import Interval, TaskScore
from a2rl.task import Split


class Best(BaseModel):
    """The best submission so far."""

    submission_id: int
    score: float


class SubmitAnswer(BaseModel):
    """What an agent learns about a submission; the reference's keys, and three of our own."""

    submission_id: int
    score: float
    baseline_score: float | None
    improvement: float | None
    best: Best | None
    total_submissions: int
    ci: Interval | None
    quota_left: int
    """Submissions that are still taken."""
    grading_seconds_left: float
    """Of the grader's time, which all submissions share."""


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
    spec, base = run.spec, run.read("baseline", BaselineRecord)
    limits = spec.grading_limits
    return GradeJob(
        root=root,
        task=spec.task,
        variant=spec.variant,
        hidden=hidden_of(run),
        model=model,
        split=split,
        split_seed=spec.split_seed,
        statistics=spec.statistics,
        backend=spec.backend,
        exact=spec.exact,
        options=spec.options,
        judge=spec.judge,
        result=result,
        log=run.logs / "grader.log",
        time_limit_s=limits.time_limit_s(base.graded_s, spec.budget_s) if base else LONGEST_S,
        silence_s=limits.silence_s,
    )


def judge_failed(job: GradeJob, result: GradeResult) -> bool:
    """Whether there is no score because the judge, which nobody here runs, did not answer; later it may."""
    return job.judge is not None and result.score.score is None and result.score.errored > 0


class GradingService:
    """Accepts and grades; safe to call from several threads."""

    def __init__(self, run: RunDir, root: Path, pool: GraderPool) -> None:
        self._run = run
        self._root = root
        self._pool = pool
        self._public = run.spec.public_split
        self._lock = threading.RLock()
        self._graded: dict[str, Future[Graded]] = {}
        self._submissions = Submissions(run)
        self.problem = ""
        """Why what was received before the agent was gone cannot be copied here; empty if nothing is the matter."""
        self._recover()

    @property
    def has_room(self) -> bool:
        """Whether a submission may be received now; a hint that costs nothing."""
        return self._submissions.has_room

    def submit(self, model_path: str) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Receives, copies, checks and queues a submission. Raises what `receive` and `take` raise."""
        return self.take(self.receive(model_path))

    def receive(self, model_path: str) -> SubmissionReceived:
        """Gives a submission its receipt: from here on it counts. See `Submissions.receive`."""
        return self._submissions.receive(model_path)

    def take(self, received: SubmissionReceived, *, again: bool = False) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Copies, checks and queues what was received. See `Submissions.accept`."""
        try:
            accepted = self._submissions.accept(received, again=again)
            graded = self._grade(accepted.weights_digest)
        except BaseException:
            self._submissions.release(received)
            raise
        graded.add_done_callback(lambda _: self._submissions.release(received))
        return accepted, graded

    def turn_away(self, model_path: str, reason: str) -> None:
        """Records a request that could not even be received."""
        self._submissions.turn_away(model_path, reason)

    def look_after(self) -> None:
        """To be called now and then: writes down refusals that were only counted."""
        self._submissions.refusals.flush(only_if_due=True)

    def finish(self) -> None:
        """The agent is gone: does what is left to do, once more where it failed before. May be called again and again;
        what is under way stays under way."""
        self._submissions.refusals.flush()
        self._take_up()

    def answer(self, accepted: SubmissionAccepted, grade: Graded) -> SubmitAnswer:
        """What is known now about a submission that was graded."""
        if grade.result.score is None:
            raise InfrastructureError(
                f"submission {accepted.submission_id} is kept, but could not be graded: {grade.result.reason}"
            )
        entries, best = self._run.ledger.entries(), best_submission(self._run.ledger)
        left = quota_left(self._run, entries)
        return SubmitAnswer(
            submission_id=accepted.submission_id,
            score=grade.result.score,
            baseline_score=self._baseline_score(),
            improvement=grade.improvement,
            best=Best(submission_id=best.submission.submission_id, score=best.score.score or 0.0) if best else None,
            total_submissions=sum(isinstance(entry.event, SubmissionAccepted) for entry in entries),
            ci=grade.result.ci,
            quota_left=left.submissions,
            grading_seconds_left=round(max(0.0, left.seconds), 1),
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

    def _grade(self, digest: str) -> "Future[Graded]":
        """The grade of a checkpoint, asked for once however often it was submitted."""
        with self._lock:
            if digest in self._graded:
                return self._graded[digest]
            outcome: Future[Graded] = Future()
            known = self._run.ledger.grades().get(digest)
            if known is not None:
                outcome.set_result(known)
                return outcome
            self._graded[digest] = outcome
        run, split = self._run, self._public
        try:
            job = grade_job(run, self._root, run.checkpoint(digest), split, run.items(digest, split))
            self._pool.submit(job).add_done_callback(lambda done: self._settle(job, digest, done, outcome))
        except BaseException:
            self._graded.pop(digest, None)  # who asks next tries again, and does not wait for what never began
            raise
        return outcome

    def _settle(self, job: GradeJob, digest: str, done: "Future[GradeResult]", outcome: "Future[Graded]") -> None:
        """However grading went, whoever waits learns it, and the next who asks is not told the same for ever."""
        try:
            graded = self._record(job, digest, done)
        except A2rlError as failure:
            self._graded.pop(digest, None)
            outcome.set_exception(failure)
        except Exception as failure:  # noqa: BLE001 - nobody is above this to whom it could be raised
            self._graded.pop(digest, None)
            outcome.set_exception(InfrastructureError(f"the grade could not be recorded: {failure!r}; submit again"))
        else:
            self._graded.pop(digest, None)  # it is in the ledger
            outcome.set_result(graded)

    def _record(self, job: GradeJob, digest: str, done: "Future[GradeResult]") -> Graded:
        error, running = done.exception(), self._run.clock.state.running_since is not None
        if isinstance(error, Interrupted):
            raise error  # the service ends; the next one grades it
        if running and error is None and judge_failed(job, done.result()):
            error = GradingError(done.result().score.reason, done.result().score.seconds)
            job.result.unlink(missing_ok=True)  # the judgements that were made are kept, and paid for once
        if running and error is not None:
            raise self._failed_for_now(digest, error) from error
        event = self._graded_event(job, digest, done)
        self._run.ledger.append_unless(event, lambda other: other.weights_digest == digest)
        return self._run.ledger.grades()[digest]

    def _failed_for_now(self, digest: str, error: BaseException) -> InfrastructureError:
        """Beside an agent that trains on the same device a grade may fail that succeeds later."""
        reason, elapsed_s = bounded(str(error), MAX_REASON), self._run.clock.elapsed_s()
        seconds = error.seconds if isinstance(error, GradingError) else 0.0
        self._run.ledger.append(
            GradingFailed(weights_digest=digest, elapsed_s=elapsed_s, reason=reason, seconds=seconds)
        )
        kept = "the submission is kept and graded when the agent is gone, or now if you submit it again"
        return InfrastructureError(f"grading failed: {reason}; {kept}")

    def _graded_event(self, job: GradeJob, digest: str, done: "Future[GradeResult]") -> Graded:
        elapsed_s, error = self._run.clock.elapsed_s(), done.exception()
        if error is not None:
            total = len(selected_ids(job.task, job.hidden, job.split, job.split_seed, statistics=job.statistics))
            reason = bounded(str(error), MAX_REASON)
            seconds = error.seconds if isinstance(error, GradingError) else 0.0
            failed = TaskScore(
                score=None, reason=reason, total=total, correct=0, wrong=0, truncated=0, errored=total, seconds=seconds
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
        """Takes up what an earlier service of this run left: half copies go and are made anew, grades are made."""
        self._run.checkpoints.mkdir(exist_ok=True)
        for leftover in self._run.checkpoints.glob(".incoming-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._take_up()

    def _take_up(self) -> None:
        for received in self._submissions.take_up():
            threading.Thread(target=self._take_again, args=(received,), daemon=True).start()
        for digest in ungraded(self._run.ledger.entries()):
            self._grade(digest)

    def _take_again(self, received: SubmissionReceived) -> None:
        """With nobody there to be answered: what comes of it is in the ledger."""
        try:
            self.take(received, again=True)
            self.problem = ""
        except InvalidSubmission:
            self.problem = ""
        except Exception as error:  # noqa: BLE001 - a thread of its own; the stage that drains is told
            if not is_agent_at_work(self._run.ledger.entries()):
                self.problem = str(error)
