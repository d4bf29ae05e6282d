"""The grades of a run's checkpoints: each is graded once, however often it is submitted, and recorded in the ledger."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError
from a2rl.core.files import file_digest
from a2rl.core.settings import Settings
from a2rl.grading.answers import KEPT
from a2rl.grading.devices import devices_of
from a2rl.grading.job import EngineChoice, GradeJob, GradeResult, ids_of_job
from a2rl.grading.outputs import Progress, progress_path, read_progress
from a2rl.grading.pool import GraderPool, GradingError, grade_now, is_of_machine, named_devices
from a2rl.grading.run_judge import is_judge_unpaid, judge_allowance_usd, require_known
from a2rl.grading.throttling import MAX_REASON, bounded
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown, Graded, GradingFailed
from a2rl.run.gpu_share import check_gpus
from a2rl.run.inputs import base_model_of, hidden_of
from a2rl.run.records import BaselineRecord, SetupRecord
from a2rl.run.rules import LONGEST_S
from a2rl.scoring.score import TaskScore
from a2rl.task_api.contract import Split


def grade_job(run: RunDir, model: Path, split: Split, result: Path) -> GradeJob:
    """Returns the job that grades a model folder for a run.

    Raises:
        UsageError: The run has a judge that is not one of this checkout's own.
    """
    spec, setup, base = run.spec, run.need("setup", SetupRecord), run.read("baseline", BaselineRecord)
    if spec.judge is not None:
        require_known(spec.judge, run.checkout)
    limits = spec.grading_limits
    engine = EngineChoice.of(spec.backend, spec.dtype, spec.vllm, base_model_of(run))
    return GradeJob(
        root=run.checkout,
        task=spec.task,
        variant=spec.variant,
        hidden=hidden_of(run),
        model=model,
        split=split,
        split_seed=spec.split_seed,
        limit=spec.limit,
        generation=spec.generation,
        **dict(engine),
        memory=setup.memory,
        exact=spec.exact,
        options=spec.options,
        judge=spec.judge,
        account=run.account if spec.judge else None,
        judge_usd=judge_allowance_usd(run, split),
        judged_for=result.stem,
        result=result,
        log=run.logs / "grader.log",
        time_limit_s=limits.time_limit_s(base.graded_s, spec.budget_s) if base else LONGEST_S,
        silence_s=limits.silence_s,
        memory_wait_s=limits.memory_wait_s,
    )


def grade_on_all_gpus(job: GradeJob, run: RunDir, settings: Settings) -> GradeResult:
    """Runs a job on all GPUs of a run, while no service uses them, and waits for the result; see `grade_now`.

    Raises:
        InfrastructureError: A GPU has disappeared, or the job cannot be graded on this machine.
        InterruptedByUserError: The user stopped the pipeline meanwhile.
    """
    return grade_now(job, settings, devices_of(check_gpus(run, settings).all, run.spec.gpus_for_one))


class Grades:
    """Grades the checkpoints of one run on the split that its agent is told about; thread-safe."""

    def __init__(self, run: RunDir, pool: GraderPool, on_graded: Callable[[], None]) -> None:
        """Grades nothing yet; `on_graded` is called after each new grade."""
        self._run, self._pool, self._on_graded = run, pool, on_graded
        self._public = run.spec.public_split
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[Graded]] = {}
        """The checkpoints that wait for a grade, by digest."""
        self.lost: dict[str, str] = {}
        """Why checkpoints cannot be graded for now, after the agent's end: how the machine has failed, by digest."""

    def waiting(self) -> frozenset[str]:
        """Returns the digests of the checkpoints that wait for a grade."""
        with self._lock:
            return frozenset(self._waiting)

    def progress(self) -> dict[str, Progress]:
        """Returns how far the grades are that have begun, by the digest of the checkpoint."""
        files = {digest: progress_path(self._run.items(digest, self._public)) for digest in self.waiting()}
        known = {digest: read_progress(file) for digest, file in files.items()}
        return {digest: progress for digest, progress in known.items() if progress is not None}

    def grade(self, digest: str, gpu: str = "") -> "Future[Graded]":
        """Returns the grade of a checkpoint, which is graded once however often it is submitted.

        Args:
            gpu: The GPUs of which one grades it, separated by commas; empty: any.
        """
        with self._lock:
            if digest in self._waiting:
                return self._waiting[digest]
            outcome: Future[Graded] = Future()
            known = self._run.ledger.grades().get(digest)
            if known is not None:
                outcome.set_result(known)
                return outcome
            self._waiting[digest] = outcome
        try:
            run, split = self._run, self._public
            job = grade_job(run, run.checkpoint(digest), split, run.items(digest, split))
            progress_path(job.result).unlink(missing_ok=True)  # of an earlier service that was killed
            graded = self._pool.submit(job, named_devices(gpu))
            graded.add_done_callback(lambda done: self._settle(job, digest, done, outcome))
        except Exception as failure:  # noqa: BLE001 - others may wait for the same checkpoint
            self._fail(digest, outcome, failure)
        return outcome

    def _settle(self, job: GradeJob, digest: str, done: "Future[GradeResult]", outcome: "Future[Graded]") -> None:
        """Records the result and completes the future for the waiting requests."""
        try:
            graded = self._record(job, digest, done)
        except Exception as failure:  # noqa: BLE001 - in a callback, an exception would be lost and requests would hang
            self._fail(digest, outcome, failure)
        else:
            self._waiting.pop(digest, None)  # the grade is in the ledger now
            self.lost.pop(digest, None)
            outcome.set_result(graded)
            self._on_graded()

    def _fail(self, digest: str, outcome: "Future[Graded]", failure: Exception) -> None:
        """Completes the future for the waiting requests without a grade; the next request tries again."""
        if not isinstance(failure, A2rlError):
            failure = InfrastructureError(f"the grader failed: {failure!r}; submit again")
        self._waiting.pop(digest, None)
        try:
            if not self._is_clock_running:
                self.lost[digest] = str(failure)
        finally:
            outcome.set_exception(failure)

    @property
    def _is_clock_running(self) -> bool:
        return self._run.clock.read_state().running_since is not None

    def _record(self, job: GradeJob, digest: str, done: "Future[GradeResult]") -> Graded:
        """Records the grade, or the failure, and returns the grade; a failure that may end by itself is raised."""
        error, running = done.exception(), self._is_clock_running
        if isinstance(error, InterruptedByUserError):
            raise error  # the service is ending; the next service grades the checkpoint
        if error is not None and not running and is_of_machine(error):
            raise error  # that is no verdict on the checkpoint
        if running and error is None and judge_failed(job, done.result()):
            error = GradingError(done.result().score.reason, done.result().score.seconds)
            job.result.unlink(missing_ok=True)  # the judgements that succeeded are cached, so they cost nothing again
        if running and error is not None and not is_judge_unpaid(self._run, self._public):
            raise self._failed_for_now(digest, error) from error
        score = done.result().score if error is None else _failed_score(job, error)
        known = self._run.ledger.events(BaselineKnown)
        baseline = known[-1].public.score if known else None
        event = Graded(
            weights_digest=digest,
            elapsed_s=self._run.clock.elapsed_s(),
            result=score,
            improvement=None if score.score is None or baseline is None else score.score - baseline,
            items_digest=file_digest(job.result) if error is None else "",
        )
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


def judge_failed(job: GradeJob, result: GradeResult) -> bool:
    """Says whether there is no score because the judge, an external service, did not answer. A retry may succeed."""
    return job.judge is not None and result.score.score is None and result.score.errored > 0


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
