"""The events of a run, as the ledger keeps them. All times `*_s` are seconds of the run's budget clock."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from a2rl.isolation.strength import Strength
from a2rl.score import TaskScore


class Event(BaseModel):
    """Base of all events."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str]


class RunOpened(Event):
    """The run exists: its settings and what they resolved to."""

    kind = "run_opened"
    spec_digest: str
    model_digest: str
    data_digest: str


class BaselineKnown(Event):
    """The base model's own score, on the split that the agent sees."""

    kind = "baseline_known"
    key: str
    public: TaskScore
    private: TaskScore | None


class AgentStarted(Event):
    """The agent was started; attempt 2 and on are resumptions, or the next trial of mode `multi`."""

    kind = "agent_started"
    attempt: int
    trial: int = 1
    elapsed_s: float


class AgentConfined(Event):
    """What the agent is confined by in the attempt that starts next; it starts with no less."""

    kind = "agent_confined"
    attempt: int
    sandbox: Strength


class AgentEnded(Event):
    """The agent is gone, with its whole process tree."""

    kind = "agent_ended"
    attempt: int
    elapsed_s: float
    reason: str
    """finished, crashed, deadline, quota (of tokens or cost), unavailable (it could not be started), interrupted, or
    lost (the pipeline itself died)."""
    exit_code: int | None
    why: str = ""
    """In plain words, where that is known."""


class ProcessesSurvived(Event):
    """Processes of the agent could not be ended with it. The run has no result then: nobody knows what they go on to
    do."""

    kind = "processes_survived"
    attempt: int
    processes: tuple[tuple[int, str], ...]
    """Process id and name, as it can be printed."""


class SubmissionReceived(Event):
    """A submission arrived in time, before a byte of it was copied. It ends as refused or accepted, whatever dies."""

    kind = "submission_received"
    receipt: int
    """1, 2, 3, ... in the order of arrival. An accepted submission has a number of its own besides."""
    elapsed_s: float
    model_path: str


class SubmissionRefused(Event):
    """A submission that cannot be graded; not a zero."""

    kind = "submission_refused"
    elapsed_s: float
    model_path: str
    reason: str
    receipt: int | None = None
    """None: it was turned away at the door, such as after the deadline, and never received."""
    count: int = 1
    """How many were turned away since the last such event, where there were too many to write down each; path and
    reason are those of the last one."""


class SubmissionAccepted(Event):
    """A submission was copied and validated. From here on it will be graded, whatever dies."""

    kind = "submission_accepted"
    submission_id: int
    elapsed_s: float
    """When it was received."""
    model_path: str
    weights_digest: str
    code_revision: str | None
    """Commit of the agent's code as it was when it submitted, in the run's `code/` repository."""
    receipt: int | None = None
    """None: from before there were receipts."""


class Graded(Event):
    """The public score of a checkpoint; once for each distinct one. Without a score it has failed for good: the grader
    could not grade it, also when the agent was gone, and the reason says why."""

    kind = "graded"
    weights_digest: str
    elapsed_s: float
    result: TaskScore
    improvement: float | None
    items_digest: str
    """SHA-256 of the grade file with the per-item results."""


class GradingFailed(Event):
    """The grader's machine could not grade a checkpoint while the agent was at work (out of memory beside its training,
    say). It is tried again when it is submitted again, and once more when the agent is gone."""

    kind = "grading_failed"
    weights_digest: str
    elapsed_s: float
    reason: str
    seconds: float = 0.0
    """What it cost the grader."""


class PrivateGraded(Event):
    """The headline score: the best submission on the private split, once, after the agent was gone."""

    kind = "private_graded"
    weights_digest: str
    result: TaskScore
    items_digest: str


class RunInterrupted(Event):
    """The user stopped the pipeline."""

    kind = "run_interrupted"
    stage: str


class RunFailed(Event):
    """A stage could not be finished, however often it was tried; until somebody resumes the run it has no result."""

    kind = "run_failed"
    stage: str
    reason: str


EVENTS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}
