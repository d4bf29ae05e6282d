"""The events of a run, as stored in the ledger. All fields `*_s` are seconds of the run's budget clock."""

from typing import ClassVar

from a2rl.agent_systems.transcripts.ending import Responsible
from a2rl.core.files import StrictModel
from a2rl.sandbox.isolation import Isolation
from a2rl.scoring.score import TaskScore


class Event(StrictModel):
    """Base of all events."""

    kind: ClassVar[str]


class RunOpened(Event):
    """The run was opened: digests of its settings, base model and data, and the commitment to its draw."""

    kind = "run_opened"
    spec_digest: str
    model_digest: str
    data_digest: str
    closes: bool = True
    """The ledger of a finished run ends with `run_closed`."""
    draw: str = ""
    """SHA-256 over the secret seed and a salt: see a2rl/run/draw.py. Empty if nothing is drawn."""


class BaselineKnown(Event):
    """The base model was graded: its scores on the public and, under the strict protocol, on the private split."""

    kind = "baseline_known"
    key: str
    public: TaskScore
    private: TaskScore | None
    items_digest: str
    """SHA-256 of the file with the per-item results."""


class AgentStarted(Event):
    """The agent was started. Attempts after the first resume the run, or are further trials of mode `multi`."""

    kind = "agent_started"
    attempt: int
    trial: int = 1
    elapsed_s: float


class AgentConfined(Event):
    """The confinement of the attempt that starts next. The attempt never starts with a weaker one."""

    kind = "agent_confined"
    attempt: int
    sandbox: Isolation
    gpus: tuple[str, ...] = ()
    """The UUIDs of the GPUs that it may use."""


class AgentEnded(Event):
    """The agent has ended, with its whole process tree."""

    kind = "agent_ended"
    attempt: int
    elapsed_s: float
    reason: str
    """`finished`, `crashed`, `deadline`, `quota` (of tokens, cost or turns), `unavailable` (it could not be started),
    `interrupted`, or `lost` (the pipeline itself died)."""
    exit_code: int | None
    why: str = ""
    """The reason in plain words, if it is known."""
    responsible: Responsible = "unknown"


class ProcessesSurvived(Event):
    """Some processes of the agent could not be killed. The run then has no result: they may still change things."""

    kind = "processes_survived"
    attempt: int
    processes: tuple[tuple[int, str], ...]
    """The process id and the printable name of each."""


class SubmissionClaims(StrictModel):
    """What an agent says of a submission, without being checked."""

    method: str = ""
    """How the checkpoint was made."""
    parent: str = ""
    """What it was made from, such as the number of an earlier submission."""
    note: str = ""


class SubmissionReceived(Event):
    """A submission arrived in time and is not copied yet. It is refused or accepted later, even after a crash."""

    kind = "submission_received"
    receipt: int
    """1, 2, 3, ... in the order of arrival. An accepted submission also gets a submission number."""
    elapsed_s: float
    model_path: str
    key: str = ""
    """The idempotency key of the request: another request with this key means this submission."""
    gpu: str = ""
    """The GPUs that the agent asked for, separated by commas; empty: any."""
    claims: SubmissionClaims = SubmissionClaims()


class SubmissionRefused(Event):
    """A submission was refused because it cannot be graded; this is not a score of zero."""

    kind = "submission_refused"
    elapsed_s: float
    model_path: str
    reason: str
    receipt: int | None = None
    """The number of its receipt. None: it was refused before it was received, for example after the deadline."""
    count: int = 1
    """The number of refusals since the last such event, if there were too many to record each. Path and reason are
    those of the last one."""


class SubmissionAccepted(Event):
    """A submission was copied and validated. From now on it will be graded, even after a crash."""

    kind = "submission_accepted"
    submission_id: int
    elapsed_s: float
    """When the submission was received."""
    model_path: str
    weights_digest: str
    code_revision: str | None
    """Commit of the agent's code at the time of the submission, in the run's `code/` repository."""
    receipt: int
    """The number of its receipt."""
    adapter: str = ""
    """The LoRA adapter that the grader merged into the base model, in words; empty if a whole model was submitted."""


class Graded(Event):
    """The public score of a checkpoint. There is one such event for each distinct checkpoint.

    If the result has no score, grading failed for good: it also failed after the agent had ended. The result's reason
    says why.
    """

    kind = "graded"
    weights_digest: str
    elapsed_s: float
    result: TaskScore
    improvement: float | None
    items_digest: str
    """SHA-256 of the grade file with the per-item results."""


class GradingFailed(Event):
    """A checkpoint could not be graded while the agent was running, for example for lack of memory.

    Grading is repeated when the checkpoint is submitted again, and once more after the agent has ended.
    """

    kind = "grading_failed"
    weights_digest: str
    elapsed_s: float
    reason: str
    seconds: float = 0.0
    """Grading time used by the failed attempt, in seconds."""


class PrivateGraded(Event):
    """The final score: the best submission on the private split, graded once, after the agent has ended."""

    kind = "private_graded"
    weights_digest: str
    result: TaskScore
    items_digest: str


class ValidityDecided(Event):
    """What the result is worth: `valid`, `flagged`, `void` or `no result`. For the same result, it only gets worse."""

    kind = "validity_decided"
    validity: str
    findings: tuple[str, ...]
    """The ids of the findings in `records/validity.json`, the heaviest first."""
    grade_digest: str
    """The digest of the grade record that was judged."""


class RunClosed(Event):
    """The run has ended, with these files. A run that failed in a stage can be resumed, and is then closed again."""

    kind = "run_closed"
    verdict: str
    failed_stage: str | None
    manifest_digest: str
    """SHA-256 of `manifest.json`, which has the digests of the files."""

    @property
    def is_final(self) -> bool:
        """Whether the run cannot be resumed after this."""
        return self.failed_stage is None


class DrawRevealed(Event):
    """The secret seed of the eval set. It is written when the agent's work can no longer go on."""

    kind = "draw_revealed"
    seed: str
    salt: str


class CheckpointPruned(Event):
    """A graded checkpoint that the run no longer needs was removed, as the setting `keep` says."""

    kind = "checkpoint_pruned"
    weights_digest: str


class RunInterrupted(Event):
    """The user stopped the pipeline."""

    kind = "run_interrupted"
    stage: str


class RunFailed(Event):
    """A stage failed despite all retries. The run has no result until it is resumed."""

    kind = "run_failed"
    stage: str
    reason: str


EVENTS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}
