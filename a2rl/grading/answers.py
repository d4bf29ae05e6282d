"""What the grading service tells the agent, computed from the ledger and the clock only: answers, and `run_meta.json`.

The keys of that file in the agent's workspace are those of the reference and a few more. The agent can change the file,
so nothing ever reads it back.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel

from a2rl.grading.outputs import Progress
from a2rl.grading.submission_states import quota_left
from a2rl.linux.resources import GIB, Resources
from a2rl.run.directory import RunDir
from a2rl.run.events import (
    BaselineKnown,
    Event,
    Graded,
    GradingFailed,
    SubmissionAccepted,
    SubmissionReceived,
    SubmissionRefused,
)
from a2rl.run.ledger import Entry, events_of
from a2rl.run.ranking import best_among
from a2rl.run.records import SetupRecord
from a2rl.scoring.means import Interval
from a2rl.task_api.catalog import load_task

SUBMIT, AT_ONCE, EXAMPLE = "/submit", "/submit?wait=0", '{"model_path": "output/v1"}'
"""How to submit, with an answer after the grade or at once, and an example of what is sent."""
KEPT = "the submission is kept and graded after the agent has ended, or now if you submit it again"
E = TypeVar("E", bound=Event)
State = Literal["received", "copying", "queued", "grading", "graded", "refused", "failed"]


class GradedSubmission(BaseModel):
    """A graded submission, with the reference's keys."""

    submission_id: int
    timestamp: str
    """When it had its grade: local time in ISO 8601."""
    model_path: str
    score: float
    baseline_score: float | None
    improvement: float | None
    elapsed_seconds: float
    """From the request to the grade."""


class SubmitAnswer(GradedSubmission):
    """The answer to a submission, with the reference's keys and four additional ones."""

    best: GradedSubmission | None
    total_submissions: int
    ci: Interval | None
    quota_left: int
    """How many more submissions are accepted."""
    grading_seconds_left: float
    """Grading time that is left for all further submissions."""
    id: int
    """Identifies the submission in `GET /submissions/{id}`."""


class SubmissionStatus(BaseModel):
    """What has become of a received submission."""

    id: int
    """The number of its receipt: 1, 2, 3, ... in the order of arrival."""
    state: State
    model_path: str
    received_at: str
    """Local time in ISO 8601."""
    submission_id: int | None = None
    """Its number among the submissions that were not refused."""
    progress: dict[str, int] | None = None
    """The numbers of items that are `done` and in `total`, while it is graded."""
    score: float | None = None
    answer: SubmitAnswer | None = None
    """The full answer, once it is graded."""
    reason: str = ""
    """Why it was refused or has no grade."""


class SubmissionList(BaseModel):
    """The newest submissions, in the order of arrival."""

    total: int
    submissions: list[SubmissionStatus]


class TimeAnswer(BaseModel):
    """The run's clock, with the reference's keys."""

    start_time: int | None
    timeout_s: int
    last_submit_time: int | None
    end_time: int | None
    now: int
    remaining: float


class ServiceState(NamedTuple):
    """What a service does at the moment; not in the ledger."""

    copying: frozenset[int]
    """The receipts of the submissions that are copied or checked."""
    waiting: frozenset[str]
    """The digests of the checkpoints that wait for a grade or are graded."""
    grading: dict[str, Progress]
    """The progress of those that are graded, by digest."""


class History:
    """The events of a ledger by what they are about; those of submissions and grades with the time of their entry."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.received = {event.receipt: (event, at) for event, at in _dated(entries, SubmissionReceived)}
        """By receipt."""
        self.accepted = {event.submission_id: (event, at) for event, at in _dated(entries, SubmissionAccepted)}
        """By the number of the submission."""
        ends = [each.event for each in entries if isinstance(each.event, SubmissionRefused | SubmissionAccepted)]
        self.ends = {event.receipt: event for event in ends}
        """Acceptance or refusal, by receipt."""
        self.grades = {event.weights_digest: (event, at) for event, at in _dated(entries, Graded)}
        """By the digest of the checkpoint."""
        self.failures = {event.weights_digest: event.reason for event in events_of(entries, GradingFailed)}
        """Why the last attempt to grade a checkpoint failed, by its digest."""
        known = events_of(entries, BaselineKnown)
        self.baseline = known[-1].public.score if known else None


def _dated(entries: Sequence[Entry], kind: type[E]) -> list[tuple[E, float]]:
    return [(entry.event, entry.at) for entry in entries if isinstance(entry.event, kind)]


def submit_answer(run: RunDir, submission_id: int, history: History) -> SubmitAnswer:
    """Returns the answer to a submission that has a score."""
    own, _ = history.accepted[submission_id]
    grade, _ = history.grades[own.weights_digest]
    best, left = best_among(history.entries), quota_left(run, history.entries)
    return SubmitAnswer(
        **_graded_submission(own, history).model_dump(),
        best=_graded_submission(best.submission, history) if best else None,
        total_submissions=len(history.accepted),
        ci=grade.result.ci,
        quota_left=left.submissions,
        grading_seconds_left=round(max(0.0, left.seconds), 1),
        id=own.receipt,
    )


def submission_status(
    run: RunDir, receipt: int, history: History, state: ServiceState, *, whole: bool
) -> SubmissionStatus:
    """Returns the state of a submission.

    Args:
        state: What the service does at the moment.
        whole: Whether the full answer is included, and not only the score.
    """
    (received, received_at), end = history.received[receipt], history.ends.get(receipt)
    status = SubmissionStatus(
        id=receipt,
        state="copying" if receipt in state.copying else "received",
        model_path=received.model_path,
        received_at=_iso(received_at),
    )
    if end is None:
        return status
    if isinstance(end, SubmissionRefused):
        return status.model_copy(update={"state": "refused", "reason": end.reason})
    status = status.model_copy(update={"submission_id": end.submission_id})
    if end.weights_digest not in history.grades:
        return status.model_copy(update=_ungraded(end.weights_digest, history, state))
    grade, _ = history.grades[end.weights_digest]
    if grade.result.score is None:
        return status.model_copy(update={"state": "failed", "reason": grade.result.reason})
    answer = submit_answer(run, end.submission_id, history) if whole else None
    return status.model_copy(update={"state": "graded", "score": grade.result.score, "answer": answer})


def _ungraded(digest: str, history: History, state: ServiceState) -> dict[str, object]:
    if digest in state.grading:
        return {"state": "grading", "progress": state.grading[digest]._asdict()}
    if digest in history.failures and digest not in state.waiting:
        return {"state": "failed", "reason": f"grading failed: {history.failures[digest]}; {KEPT}"}
    return {"state": "queued"}


def time_answer(run: RunDir, now: float) -> TimeAnswer:
    """Returns the state of the clock; `now` is Unix time."""
    entries, state = run.ledger.entries(), run.clock.read_state()
    remaining = max(0.0, run.clock.remaining_s())
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


def _graded_submission(submission: SubmissionAccepted, history: History) -> GradedSubmission:
    """Returns a submission whose checkpoint has a score."""
    _, received_at = history.received[submission.receipt]
    _, accepted_at = history.accepted[submission.submission_id]
    grade, at = history.grades[submission.weights_digest]
    graded_at = max(at, accepted_at)  # the checkpoint may have been graded for an earlier submission
    return GradedSubmission(
        submission_id=submission.submission_id,
        timestamp=_iso(graded_at),
        model_path=submission.model_path,
        score=grade.result.score or 0.0,
        baseline_score=history.baseline,
        improvement=grade.improvement,
        elapsed_seconds=round(max(0.0, graded_at - received_at), 2),
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat()


RUN_META = "run_meta.json"
RUN_META_MODE = 0o644


def run_meta(run: RunDir, environ: Mapping[str, str]) -> str:
    """Returns the text of the file for this moment.

    Args:
        environ: The user's environment, which may limit the agent's memory.
    """
    spec, now, remaining_s = run.spec, time.time(), max(0.0, run.clock.remaining_s())
    submits = [entry.at for entry in run.ledger.entries() if isinstance(entry.event, SubmissionAccepted)]
    limits = load_task(spec.task, run.checkout).variant(spec.variant).limits
    setup = run.read("setup", SetupRecord)
    memory = setup.memory if setup and not spec.grading_gpus else None
    known = {
        "start_time": int(now - (spec.budget_s - remaining_s)),
        "timeout_s": int(spec.budget_s),
        "last_submit_time": int(submits[-1]) if submits else None,
        "end_time": int(now + remaining_s),
        "task": spec.task,
        "mode": spec.mode,
        "seed": spec.seed,
        "steps": spec.steps,
        "driver": spec.driver,
        "variant": spec.variant,
        "max_new_tokens": spec.generation.max_new_tokens or limits.max_new_tokens,
        "max_steps": limits.max_steps,
        "temperature": spec.generation.temperature,
        "chat_template_kwargs": spec.generation.chat_template_kwargs,
        "options": spec.options,
        "memory_gib": round(Resources.of_machine(run.workspace, environ).memory / GIB, 1) or None,
        "grader_gib": memory.total_gib if memory else None,
    }
    return json.dumps(known, indent=2)
