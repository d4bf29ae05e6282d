"""`records/labels.json`: the labels of a run, which a limited process computes (run_labels.py), and their words."""

from typing import Literal, get_args

from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.files import StrictModel
from a2rl.core.processes import read_apart
from a2rl.core.settings import Settings
from a2rl.run.directory import Record, RunDir, aside_log

Route = Literal[
    "SFT", "DPO", "GRPO", "PPO", "online RL", "rejection sampling", "merge", "copy", "unknown"
]  # fmt: skip
"""What the labels mean.

SFT: imitation of given texts. DPO: preference losses on pairs (also KTO, ORPO). GRPO: a policy gradient whose rewards
are compared within a group of answers (also RLOO). PPO: a policy gradient without groups (also REINFORCE). online RL: a
policy gradient on episodes of several turns in an environment. rejection sampling: imitation of the model's own answers
that passed a check. merge: arithmetic on the weights of several checkpoints. copy: the base model, unchanged.
"""
ROUTES: tuple[Route, ...] = get_args(Route)
POLICY_GRADIENTS: tuple[Route, ...] = ("GRPO", "PPO", "online RL")

TrainingType = Literal["SFT", "GRPO", "PPO", "DPO", "copy_model", "unknown"]
"""The paper's training types."""
TRAINING_TYPES: dict[Route, TrainingType] = {
    "SFT": "SFT", "DPO": "DPO", "GRPO": "GRPO", "PPO": "PPO", "online RL": "GRPO", "rejection sampling": "SFT",
    "merge": "unknown", "copy": "copy_model", "unknown": "unknown",
}  # fmt: skip
"""The training type of the last step of a route. The paper counts online RL by its algorithm, which is GRPO."""

FailureType = Literal[
    "code_error_runtime", "rollout_logic_wrong", "timeout_no_submission", "copy_model_fallback", "training_diverged",
    "unknown",
]  # fmt: skip
"""The paper's failure types."""


class Evidence(StrictModel):
    """What a label is based on."""

    source: Literal["trace", "log", "weights", "ledger", "code"]
    what: str
    """What was found, in words."""
    commit: str = ""
    """The state of the agent's code, in the run's `code/` repository."""
    file: str = ""
    line: int = 0
    at_s: float | None = None
    """When, in seconds of the run's budget clock."""


class RouteLabel(StrictModel):
    """One step of a route."""

    route: Route
    confidence: float
    """0 to 1."""
    evidence: tuple[Evidence, ...] = ()


Chain = tuple[RouteLabel, ...]
"""The steps of a route, in order: SFT, then GRPO."""


UNKNOWN = RouteLabel(route="unknown", confidence=0.5)


def in_words(chain: Chain) -> str:
    """Returns a chain as text, such as `SFT > GRPO`."""
    return " > ".join(label.route for label in chain)


def training_type(chain: Chain) -> TrainingType:
    """Returns the paper's training type of a chain: that of its last step."""
    return TRAINING_TYPES[chain[-1].route] if chain else "unknown"


VERSION = 6
"""The version of the rules that made a record. Labels of an earlier version stay until `a2rl label` or `a2rl report`
computes them again."""
TIMEOUT_S, MAX_CPU_S = 100.0, 12
MAX_MEMORY_BYTES = 900 << 20


class SubmissionRoute(StrictModel):
    """The route to the checkpoint of a submission."""

    submission: int
    chain: tuple[RouteLabel, ...]


class Failure(StrictModel):
    """A reason why a run did not improve the model."""

    kind: FailureType
    confidence: float
    evidence: tuple[Evidence, ...] = ()


class SecondRating(StrictModel):
    """The route as an LLM sees it, which reads the same code."""

    model: str
    routes: tuple[Route, ...]
    reason: str = ""
    """Why there are none; empty if there are."""
    dollars: float = 0.0


class ProgramRun(StrictModel):
    """The time of a program that trained or sampled, in seconds of the budget clock."""

    activity: Literal["SFT", "RL", "rollout"]
    start_s: float
    end_s: float | None
    """None if it lasted until the agent was ended."""


class LabelsRecord(Record):
    """What a run did and why it failed, as far as its records show."""

    version: int = VERSION
    chain: tuple[RouteLabel, ...]
    """The route to the submission that counts; without one, that of the last code."""
    training_type: TrainingType
    """The paper's word for the last step of the route."""
    submissions: tuple[SubmissionRoute, ...] = ()
    programs: tuple[ProgramRun, ...] = ()
    """What the time line of activities shows of the agent's programs."""
    failures: tuple[Failure, ...] = ()
    """Empty if the model improved."""
    second: SecondRating | None = None
    reason: str = ""
    """Why the run could not be labelled; empty if it was."""


def labels_of(run: RunDir) -> LabelsRecord | None:
    """Returns the labels of a run; None if it has none."""
    return run.read("labels", LabelsRecord)


def labels_object(run: RunDir) -> dict[str, object] | None:
    """Returns the labels of a run in the form in which JSON outputs show them; None if it has none."""
    found = labels_of(run)
    if found is None:
        return None
    return {
        "route": [label.route for label in found.chain],
        "confidence": min((label.confidence for label in found.chain), default=None),
        "training_type": found.training_type,
        "failures": [failure.kind for failure in found.failures],
        "second_route": list(found.second.routes) if found.second and found.second.routes else None,
    }


def write_labels(run: RunDir, settings: Settings) -> LabelsRecord:
    """Computes the labels and writes the record. It never fails: a run that cannot be labelled has the label unknown.

    A second rating that an earlier record has is kept, and so is an earlier record if the run can no longer be read.
    """
    record = _computed(run, settings)
    known = labels_of(run)
    if record.reason and known is not None and not known.reason:
        return record
    if known is not None and known.second is not None:
        record = record.model_copy(update={"second": known.second})
    return run.write("labels", record)


def _computed(run: RunDir, settings: Settings) -> LabelsRecord:
    try:
        read = read_apart(
            "a2rl.labels.run_labels", [str(run.root)], settings, "", TIMEOUT_S, MAX_MEMORY_BYTES, MAX_CPU_S
        )
        if read.problem:
            raise InfrastructureError(read.problem)
        return LabelsRecord.model_validate_json(read.output)
    except (OSError, ValueError, InfrastructureError) as error:
        log_failure(aside_log(run), "the run could not be labelled", error)
        return LabelsRecord(
            seconds=0, chain=(UNKNOWN,), training_type="unknown", version=VERSION, reason=str(error)[:500]
        )
