"""The grading service of one run: accepts submissions, grades each distinct checkpoint once, and writes the ledger.

A submission that arrives in time gets a receipt, is copied, and ends as refused or accepted (receiving.py). An accepted
one is graded (grades.py). A restarted service goes on with what it finds in the ledger. Answers are computed only from
the ledger.
"""

import shutil
import threading
from concurrent.futures import Future
from contextlib import suppress

from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.grading.answers import (
    KEPT,
    RUN_META,
    RUN_META_MODE,
    History,
    ServiceState,
    SubmissionList,
    SubmissionStatus,
    SubmitAnswer,
    TimeAnswer,
    run_meta,
    submission_status,
    submit_answer,
    time_answer,
)
from a2rl.grading.grades import Grades
from a2rl.grading.pool import GraderPool
from a2rl.grading.receiving import Submissions, SubmitRequest
from a2rl.grading.submission_queue import Outcome, PendingSubmission
from a2rl.grading.submission_states import is_agent_at_work, open_receipts, ungraded
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, SubmissionAccepted, SubmissionReceived
from a2rl.run.inputs import settings_of
from a2rl.run.ledger import events_of
from a2rl.run.names import stored_entries


class GradingService:
    """Accepts and grades submissions; thread-safe."""

    def __init__(self, run: RunDir, pool: GraderPool) -> None:
        """Continues the work of an earlier service of this run; incomplete copies are made again."""
        self._run = run
        self.submissions = Submissions(run)
        self._grades = Grades(run, pool, self.submissions.prune)
        self._uncopied: dict[int, str] = {}
        """Why what was received before the agent's end cannot be copied for now, by receipt."""
        run.checkpoints.mkdir(exist_ok=True)
        for leftover in run.checkpoints.glob(".incoming-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self.submissions.prune()
        self._resume_unfinished()

    @property
    def problem(self) -> str:
        """Why a submission received before the agent's end cannot be copied or graded; empty if all of them can."""
        return next(iter((*self._uncopied.values(), *self._grades.lost.values())), "")

    def submit(self, request: SubmitRequest, *, queues: bool = False) -> PendingSubmission:
        """Receives a submission, and begins the work on it, or joins the work that has begun.

        Raises the same errors as `Submissions.receive`.
        """
        pending = self.submissions.receive(request, queues=queues)
        self._begin(pending)
        return pending

    def finish(self) -> None:
        """Finishes all submissions after the agent has ended, and repeats what failed before.

        It may be called repeatedly; work that is already in progress continues.
        """
        self.submissions.refusals.flush()
        self.submissions.queue.end_pause()
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
        return submit_answer(self._run, accepted.submission_id, History(stored_entries(self._run)))

    def status(self, receipt: int) -> SubmissionStatus | None:
        """Returns the state of the submission with this receipt; None if there is none."""
        history = History(stored_entries(self._run))
        if receipt not in history.received:
            return None
        return submission_status(self._run, receipt, history, self._state_now(), whole=True)

    def statuses(self, most: int) -> SubmissionList:
        """Returns the states of the newest submissions."""
        history, state = History(stored_entries(self._run)), self._state_now()
        newest = list(history.received)[-most:]
        shown = [submission_status(self._run, receipt, history, state, whole=False) for receipt in newest]
        return SubmissionList(total=len(history.received), submissions=shown)

    def time(self, now: float) -> TimeAnswer:
        """Returns the state of the clock; `now` is Unix time."""
        return time_answer(self._run, now)

    def work(self, pending: PendingSubmission, *, again: bool = False) -> None:
        """Does all work on a submission: copies it, and has it graded. Its end completes `pending.outcome`.

        Args:
            again: Whether an earlier service has tried before.
        """
        try:
            accepted = self.submissions.accept(pending, again=again)
            graded = self._grades.grade(accepted.weights_digest, pending.received.gpu)
        except A2rlError as error:
            self._end(pending, error)
        except Exception as error:  # noqa: BLE001 - in a thread, an exception would be lost and requests would hang
            self._end(pending, InfrastructureError(f"the grader failed: {error!r}; submit again"))
        else:
            self._uncopied.pop(pending.received.receipt, None)
            graded.add_done_callback(lambda done: self._end(pending, _outcome_of(accepted, done)))

    def _begin(self, pending: PendingSubmission, *, again: bool = False) -> None:
        """Begins the work on a submission in a thread of its own, unless somebody has begun with it."""
        if not self.submissions.queue.begin(pending):
            return
        try:
            threading.Thread(target=self.work, args=[pending], kwargs={"again": again}, daemon=True).start()
        except RuntimeError as error:  # there are too many processes; `finish` begins with it again
            self._end(pending, InfrastructureError(f"{error}; {KEPT}"))

    def _end(self, pending: PendingSubmission, ending: Outcome | BaseException) -> None:
        receipt = pending.received.receipt
        try:
            entries = self._run.ledger.entries()
            if receipt not in {each.receipt for each in open_receipts(entries)}:
                self._uncopied.pop(receipt, None)
            elif not is_agent_at_work(entries):
                self._uncopied[receipt] = str(ending)
            # The reference has the time of the last submission in the workspace.
            with suppress(OSError, A2rlError), UntrustedFolder.at(self._run.workspace) as workspace:
                workspace.write(RUN_META, run_meta(self._run, settings_of(self._run).environ), RUN_META_MODE)
        finally:
            self.submissions.queue.end(pending, ending)

    def _state_now(self) -> ServiceState:
        copying = self.submissions.queue.receipts("copying")
        return ServiceState(copying=copying, waiting=self._grades.waiting(), grading=self._grades.progress())

    def _resume_unfinished(self) -> None:
        for pending in self.submissions.claim_unfinished():
            self._begin(pending, again=True)
        entries = self._run.ledger.entries()
        gpus = {event.receipt: event.gpu for event in events_of(entries, SubmissionReceived)}
        for digest, accepted in ungraded(entries).items():
            self._grades.grade(digest, gpus.get(accepted.receipt, ""))


def _outcome_of(accepted: SubmissionAccepted, graded: "Future[Graded]") -> Outcome | BaseException:
    return graded.exception() or Outcome(accepted, graded.result())
