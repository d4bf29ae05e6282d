"""The grading service of one run: accepts submissions, grades each distinct checkpoint once, and writes the ledger.

A submission counts as soon as the ledger says that it was received. After a crash, a restarted service finds it there,
copies it and grades it. Answers are computed only from the ledger.
"""

import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError, InvalidSubmissionError
from a2rl.core.files import file_digest
from a2rl.grading.answers import (
    KEPT,
    History,
    SubmissionList,
    SubmissionStatus,
    SubmitAnswer,
    TimeAnswer,
    Work,
    submission_status,
    submit_answer,
    time_answer,
)
from a2rl.grading.devices import DeviceLostError
from a2rl.grading.job import EngineChoice, GradeJob, GradeResult, ids_of_job, progress_path, read_progress_file
from a2rl.grading.judge_money import is_judge_unpaid, judge_allowance_usd
from a2rl.grading.pool import GraderPool, GradingError, named_devices
from a2rl.grading.refusals import MAX_REASON, bounded
from a2rl.grading.submission_states import is_agent_at_work, ungraded
from a2rl.grading.submissions import NO_CLAIMS, Submissions
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.run.directory import RunDir
from a2rl.run.events import (
    BaselineKnown,
    Claims,
    Graded,
    GradingFailed,
    SubmissionAccepted,
    SubmissionReceived,
    SubmissionRefused,
)
from a2rl.run.grading_limits import LONGEST_S
from a2rl.run.inputs import base_model_of, hidden_of
from a2rl.run.ledger import Entry
from a2rl.run.meta import RUN_META, RUN_META_MODE, run_meta
from a2rl.run.records import BaselineRecord
from a2rl.run.stored import safe_entries
from a2rl.scoring.score import TaskScore
from a2rl.tasks.contract import Split


class Outcome(NamedTuple):
    """A submission that was accepted, and the grade of its checkpoint."""

    accepted: SubmissionAccepted
    grade: Graded


def grade_job(run: RunDir, root: Path, model: Path, split: Split, result: Path) -> GradeJob:
    """Returns the job that grades a model folder for a run."""
    spec, base = run.spec, run.read("baseline", BaselineRecord)
    limits = spec.grading_limits
    engine = EngineChoice.of(spec.backend, spec.dtype, spec.vllm, base_model_of(run))
    return GradeJob(
        root=root,
        task=spec.task,
        variant=spec.variant,
        hidden=hidden_of(run),
        model=model,
        split=split,
        split_seed=spec.split_seed,
        statistics=spec.statistics,
        limit=spec.limit,
        generation=spec.generation,
        backend=engine.backend,
        dtype=engine.dtype,
        vllm=engine.vllm,
        exact=spec.exact,
        options=spec.options,
        judge=spec.judge,
        account=run.account if spec.judge else None,
        judge_usd=judge_allowance_usd(run, split),
        judged_for=result.stem,
        judge_sample=spec.judge_sample if base else 0,  # the baseline is shared with runs that measure no noise
        result=result,
        log=run.logs / "grader.log",
        time_limit_s=limits.time_limit_s(base.graded_s, spec.budget_s) if base else LONGEST_S,
        silence_s=limits.silence_s,
    )


def judge_failed(job: GradeJob, result: GradeResult) -> bool:
    """Says whether there is no score because the judge, an external service, did not answer. A retry may succeed."""
    return job.judge is not None and result.score.score is None and result.score.errored > 0


class GradingService:
    """Accepts and grades submissions; thread-safe."""

    def __init__(self, run: RunDir, root: Path, pool: GraderPool) -> None:
        self._run = run
        self._root = root
        self._pool = pool
        self._public = run.spec.public_split
        self._lock = threading.RLock()
        self._graded: dict[str, Future[Graded]] = {}
        """The checkpoints that wait for a grade, by digest."""
        self._under_way: dict[int, Future[Outcome]] = {}
        """The submissions that are worked on, by receipt."""
        self._submissions = Submissions(run)
        self.problem = ""
        """Why a submission received before the agent's end cannot be copied; empty if there is no problem."""
        self._recover()

    def submit(self, model_path: str) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Receives, copies, checks and queues a submission. Raises the same errors as `receive` and `accept`."""
        return self.accept(self.receive(model_path))

    def receive(
        self, model_path: str, key: str = "", gpu: str = "", *, queues: bool = False, claims: Claims = NO_CLAIMS
    ) -> SubmissionReceived:
        """Gives a submission its receipt. From then on, the submission counts. See `Submissions.receive`."""
        return self._submissions.receive(model_path, key, gpu, queues=queues, claims=claims)

    def start(self, received: SubmissionReceived, *, again: bool = False) -> "Future[Outcome]":
        """Begins the work on a received submission in a thread of its own, or joins the work that has begun.

        Returns:
            A future that always completes. It raises the same errors as `accept`, and InfrastructureError if the
            submission could not be graded for now.
        """
        with self._lock:
            if (begun := self._under_way.get(received.receipt)) is not None:
                return begun
            outcome = self._under_way[received.receipt] = Future[Outcome]()
        threading.Thread(target=self._work, args=(received, again, outcome), daemon=True).start()
        return outcome

    def accept(
        self, received: SubmissionReceived, *, again: bool = False
    ) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Copies, checks and queues a received submission. See `Submissions.accept`."""
        try:
            accepted = self._submissions.accept(received, again=again)
            graded = self._grade(accepted.weights_digest, received.gpu)
        except BaseException:
            self._submissions.release(received)
            raise
        graded.add_done_callback(lambda _: self._submissions.release(received))
        return accepted, graded

    def refuse_unreceived(self, model_path: str, reason: str) -> None:
        """Records a request that was refused before it was received."""
        self._submissions.refuse_unreceived(model_path, reason)

    def flush_refusals(self) -> None:
        """Records refusals that were only counted so far, if it is time to do so; call it regularly."""
        self._submissions.refusals.flush(only_if_due=True)

    def finish(self) -> None:
        """Finishes all submissions after the agent has ended, and repeats what failed before.

        It may be called repeatedly; work that is already in progress continues.
        """
        self._submissions.refusals.flush()
        self._resume_unfinished()

    def answer(self, accepted: SubmissionAccepted, grade: Graded) -> SubmitAnswer:
        """Returns the answer to a graded submission.

        Raises:
            InfrastructureError: It could not be graded.
        """
        if grade.result.score is None:
            raise InfrastructureError(
                f"submission {accepted.submission_id} is kept, but could not be graded: {grade.result.reason}"
            )
        return submit_answer(self._run, accepted.submission_id, History(safe_entries(self._run)))

    def status(self, receipt: int) -> SubmissionStatus | None:
        """Returns the state of the submission with this receipt; None if there is none."""
        history = History(safe_entries(self._run))
        if receipt not in history.received:
            return None
        return submission_status(self._run, receipt, history, self._work_now(), whole=True)

    def statuses(self, most: int) -> SubmissionList:
        """Returns the states of the newest submissions."""
        history, work = History(safe_entries(self._run)), self._work_now()
        newest = list(history.received)[-most:]
        shown = [submission_status(self._run, receipt, history, work, whole=False) for receipt in newest]
        return SubmissionList(total=len(history.received), submissions=shown)

    def time(self, now: float) -> TimeAnswer:
        """Returns the state of the clock; `now` is Unix time."""
        return time_answer(self._run, now)

    def _work_now(self) -> Work:
        with self._lock:
            waiting = dict(self._graded)
        split = self._run.spec.public_split
        progress = {digest: read_progress_file(progress_path(self._run.items(digest, split))) for digest in waiting}
        return Work(
            copying=self._submissions.copying,
            waiting=frozenset(waiting),
            grading={digest: known for digest, known in progress.items() if known is not None},
        )

    def _work(self, received: SubmissionReceived, again: bool, outcome: "Future[Outcome]") -> None:
        """Does all work on a submission. Its end completes the future for the requests that wait for it."""
        try:
            accepted, graded = self._accept_or_join(received, again)
        except InvalidSubmissionError as refusal:
            self.problem = ""
            self._end(received, outcome, refusal)
        except A2rlError as error:
            self._end(received, outcome, error, is_copied=False)
        except Exception as error:  # noqa: BLE001 - in a thread, an exception would be lost and requests would hang
            failure = InfrastructureError(f"the grader failed: {error!r}; submit again")
            self._end(received, outcome, failure, is_copied=False)
        else:
            self.problem = ""
            graded.add_done_callback(lambda done: self._end(received, outcome, _outcome_of(accepted, done)))

    def _accept_or_join(self, received: SubmissionReceived, again: bool) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Accepts a submission; one that was accepted before is not copied again, and graded if it has no grade."""
        for event in self._run.ledger.events(SubmissionAccepted):
            if event.receipt == received.receipt:
                self._submissions.release(received)
                return event, self._grade(event.weights_digest, received.gpu)
        for refusal in self._run.ledger.events(SubmissionRefused):
            if refusal.receipt == received.receipt:
                self._submissions.release(received)
                raise InvalidSubmissionError(refusal.reason)
        return self.accept(received, again=again)

    def _end(
        self,
        received: SubmissionReceived,
        future: "Future[Outcome]",
        ending: Outcome | BaseException,
        *,
        is_copied: bool = True,
    ) -> None:
        try:
            if not is_copied and not is_agent_at_work(self._run.ledger.entries()):
                self.problem = str(ending)
            # The reference has the time of the last submission in the workspace.
            with suppress(OSError, A2rlError), UntrustedFolder.at(self._run.workspace) as workspace:
                workspace.write(RUN_META, run_meta(self._run), RUN_META_MODE)
        finally:
            with self._lock:
                self._under_way.pop(received.receipt, None)
            if isinstance(ending, BaseException):
                future.set_exception(ending)
            else:
                future.set_result(ending)

    def _grade(self, digest: str, gpu: str = "") -> "Future[Graded]":
        """Returns the grade of a checkpoint, which is graded once however often it is submitted.

        Args:
            digest: The digest of its weights.
            gpu: The GPUs of which one grades it, separated by commas; empty: any.
        """
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
            progress_path(job.result).unlink(missing_ok=True)  # of an earlier service that was killed
            graded = self._pool.submit(job, named_devices(gpu))
            graded.add_done_callback(lambda done: self._settle(job, digest, done, outcome))
        except BaseException:
            self._graded.pop(digest, None)  # so that the next request tries again instead of waiting for this one
            raise
        return outcome

    def _settle(self, job: GradeJob, digest: str, done: "Future[GradeResult]", outcome: "Future[Graded]") -> None:
        """Records the result and completes the future for the waiting requests; a failure is not remembered."""
        try:
            graded = self._record(job, digest, done)
        except A2rlError as failure:
            self._graded.pop(digest, None)
            outcome.set_exception(failure)
        except Exception as failure:  # noqa: BLE001 - in a callback, an exception would be lost and requests would hang
            self._graded.pop(digest, None)
            outcome.set_exception(InfrastructureError(f"the grade could not be recorded: {failure!r}; submit again"))
        else:
            self._graded.pop(digest, None)  # the grade is in the ledger now
            outcome.set_result(graded)
            self._prune()

    def _prune(self) -> None:
        with suppress(A2rlError, OSError):  # tried again after the next grade, and by the stage `grade`
            self._submissions.prune()

    def _record(self, job: GradeJob, digest: str, done: "Future[GradeResult]") -> Graded:
        error, running = done.exception(), self._run.clock.read_state().running_since is not None
        if isinstance(error, InterruptedByUserError):
            raise error  # the service is ending; the next service grades the checkpoint
        if isinstance(error, DeviceLostError) and not running:
            self.problem = str(error)  # what the machine has lost is no verdict on the checkpoint
            raise error
        if running and error is None and judge_failed(job, done.result()):
            error = GradingError(done.result().score.reason, done.result().score.seconds)
            job.result.unlink(missing_ok=True)  # the judgements that succeeded are cached, so they cost nothing again
        if running and error is not None and not is_judge_unpaid(self._run, self._public):
            raise self._failed_for_now(digest, error) from error
        event = self._graded_event(job, digest, done)
        self._run.ledger.append_unless(event, lambda other: other.weights_digest == digest)
        return self._run.ledger.grades()[digest]

    def _failed_for_now(self, digest: str, error: BaseException) -> InfrastructureError:
        """Records a failure while the agent is running. Grading may succeed later, without the agent's load on the
        device."""
        reason, elapsed_s = bounded(str(error), MAX_REASON), self._run.clock.elapsed_s()
        seconds = error.seconds if isinstance(error, GradingError) else 0.0
        self._run.ledger.append(
            GradingFailed(weights_digest=digest, elapsed_s=elapsed_s, reason=reason, seconds=seconds)
        )
        return InfrastructureError(f"grading failed: {reason}; {KEPT}")

    def _graded_event(self, job: GradeJob, digest: str, done: "Future[GradeResult]") -> Graded:
        elapsed_s, error = self._run.clock.elapsed_s(), done.exception()
        if error is not None:
            failed = _failed_score(job, error)
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
        """Continues the work of an earlier service of this run; incomplete copies are made again."""
        self._run.checkpoints.mkdir(exist_ok=True)
        for leftover in self._run.checkpoints.glob(".incoming-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._prune()
        self._resume_unfinished()

    def _resume_unfinished(self) -> None:
        for received in self._submissions.claim_unfinished():
            self.start(received, again=True)
        entries = self._run.ledger.entries()
        wanted = {event.receipt: event.gpu for event in _received(entries)}
        for digest, accepted in ungraded(entries).items():
            self._grade(digest, wanted.get(accepted.receipt or 0, ""))


def _outcome_of(accepted: SubmissionAccepted, graded: "Future[Graded]") -> Outcome | BaseException:
    return graded.exception() or Outcome(accepted, graded.result())


def _received(entries: Iterable[Entry]) -> list[SubmissionReceived]:
    return [entry.event for entry in entries if isinstance(entry.event, SubmissionReceived)]


def _failed_score(job: GradeJob, error: BaseException) -> TaskScore:
    """Returns a result without a score, with the reason, for a checkpoint whose grading has failed for good."""
    total = len(ids_of_job(job))
    return TaskScore(
        score=None,
        reason=bounded(str(error), MAX_REASON),
        total=total,
        correct=0,
        wrong=0,
        truncated=0,
        errored=total,
        seconds=error.seconds if isinstance(error, GradingError) else 0.0,
    )
