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

from a2rl.core.errors import A2rlError, InfrastructureError, InvalidSubmissionError
from a2rl.grading.answers import (
    RUN_META,
    RUN_META_MODE,
    History,
    SubmissionList,
    SubmissionStatus,
    SubmitAnswer,
    TimeAnswer,
    Work,
    run_meta,
    submission_status,
    submit_answer,
    time_answer,
)
from a2rl.grading.grades import Grades
from a2rl.grading.job import EngineChoice, GradeJob
from a2rl.grading.pool import GraderPool
from a2rl.grading.run_judge import judge_allowance_usd, require_known
from a2rl.grading.submission_states import is_agent_at_work, ungraded
from a2rl.grading.submissions import Submissions
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, SubmissionAccepted, SubmissionReceived, SubmissionRefused
from a2rl.run.inputs import base_model_of, hidden_of
from a2rl.run.ledger import Entry
from a2rl.run.names import safe_entries
from a2rl.run.records import BaselineRecord, SetupRecord
from a2rl.run.rules import LONGEST_S
from a2rl.task_api.contract import Split


class Outcome(NamedTuple):
    """A submission that was accepted, and the grade of its checkpoint."""

    accepted: SubmissionAccepted
    grade: Graded


def grade_job(run: RunDir, root: Path, model: Path, split: Split, result: Path) -> GradeJob:
    """Returns the job that grades a model folder for a run.

    Raises:
        UsageError: The run has a judge that is not one of this checkout's own.
    """
    spec, setup, base = run.spec, run.need("setup", SetupRecord), run.read("baseline", BaselineRecord)
    if spec.judge is not None:
        require_known(spec.judge, root)
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
        limit=spec.limit,
        generation=spec.generation,
        backend=engine.backend,
        dtype=engine.dtype,
        vllm=engine.vllm,
        memory=setup.memory,
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
        memory_wait_s=limits.memory_wait_s,
    )


class GradingService:
    """Accepts and grades submissions; thread-safe."""

    def __init__(self, run: RunDir, root: Path, pool: GraderPool) -> None:
        self._run = run
        self._root = root
        self._lock = threading.RLock()
        self._problems: dict[int | str, str] = {}
        """Why what was received before the agent's end cannot be copied or graded for now, by receipt or by digest."""
        self._grades = Grades(run, pool, self._job_of, self._problems.__setitem__, self._note_grade)
        self._under_way: dict[int, Future[Outcome]] = {}
        """The submissions that are worked on, by receipt."""
        self.submissions = Submissions(run)
        """Receives and copies them."""
        self._recover()

    @property
    def problem(self) -> str:
        """Why a submission received before the agent's end cannot be copied or graded; empty if all of them can."""
        return next(iter(tuple(self._problems.values())), "")

    def submit(self, model_path: str) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Receives, copies, checks and queues a submission. See `Submissions.receive` and `accept`."""
        return self.accept(self.submissions.receive(model_path))

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
            accepted = self.submissions.accept(received, again=again)
            graded = self._grades.of(accepted.weights_digest, received.gpu)
        except BaseException:
            self.submissions.release(received)
            raise
        graded.add_done_callback(lambda _: self.submissions.release(received))
        return accepted, graded

    def finish(self) -> None:
        """Finishes all submissions after the agent has ended, and repeats what failed before.

        It may be called repeatedly; work that is already in progress continues.
        """
        self.submissions.refusals.flush()
        self.submissions.end_pause()
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

    def _job_of(self, digest: str) -> GradeJob:
        run, split = self._run, self._run.spec.public_split
        return grade_job(run, self._root, run.checkpoint(digest), split, run.items(digest, split))

    def _work_now(self) -> Work:
        waiting, progress = self._grades.waiting(), self._grades.progress()
        return Work(copying=frozenset(self.submissions.copying), waiting=waiting, grading=progress)

    def _work(self, received: SubmissionReceived, again: bool, outcome: "Future[Outcome]") -> None:
        """Does all work on a submission. Its end completes the future for the requests that wait for it."""
        try:
            accepted, graded = self._accept_or_join(received, again)
        except InvalidSubmissionError as refusal:
            self._end(received, outcome, refusal)
        except A2rlError as error:
            self._end(received, outcome, error, is_copied=False)
        except Exception as error:  # noqa: BLE001 - in a thread, an exception would be lost and requests would hang
            failure = InfrastructureError(f"the grader failed: {error!r}; submit again")
            self._end(received, outcome, failure, is_copied=False)
        else:
            self._problems.pop(received.receipt, None)
            graded.add_done_callback(lambda done: self._end(received, outcome, _outcome_of(accepted, done)))

    def _accept_or_join(self, received: SubmissionReceived, again: bool) -> "tuple[SubmissionAccepted, Future[Graded]]":
        """Accepts a submission; one that was accepted before is not copied again, and graded if it has no grade."""
        for event in self._run.ledger.events(SubmissionAccepted):
            if event.receipt == received.receipt:
                self.submissions.release(received)
                return event, self._grades.of(event.weights_digest, received.gpu)
        for refusal in self._run.ledger.events(SubmissionRefused):
            if refusal.receipt == received.receipt:
                self.submissions.release(received)
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
            if is_copied:
                self._problems.pop(received.receipt, None)
            elif not is_agent_at_work(self._run.ledger.entries()):
                self._problems[received.receipt] = str(ending)
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

    def _note_grade(self, digest: str) -> None:
        self._problems.pop(digest, None)
        self._prune()

    def _prune(self) -> None:
        with suppress(A2rlError, OSError):  # tried again after the next grade, and by the stage `grade`
            self.submissions.prune()

    def _recover(self) -> None:
        """Continues the work of an earlier service of this run; incomplete copies are made again."""
        self._run.checkpoints.mkdir(exist_ok=True)
        for leftover in self._run.checkpoints.glob(".incoming-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._prune()
        self._resume_unfinished()

    def _resume_unfinished(self) -> None:
        for received in self.submissions.claim_unfinished():
            self.start(received, again=True)
        entries = self._run.ledger.entries()
        wanted = {event.receipt: event.gpu for event in _received(entries)}
        for digest, accepted in ungraded(entries).items():
            self._grades.of(digest, wanted.get(accepted.receipt, ""))


def _outcome_of(accepted: SubmissionAccepted, graded: "Future[Graded]") -> Outcome | BaseException:
    return graded.exception() or Outcome(accepted, graded.result())


def _received(entries: Iterable[Entry]) -> list[SubmissionReceived]:
    return [entry.event for entry in entries if isinstance(entry.event, SubmissionReceived)]
