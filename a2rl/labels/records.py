"""`records/labels.json`: the labels of a run, which a limited process computes (`python -m a2rl.labels`)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import read_apart
from a2rl.core.settings import Settings
from a2rl.labels.routes import UNKNOWN, Evidence, FailureType, Route, RouteLabel, TrainingType
from a2rl.run.directory import Record, RunDir, pipeline_log

VERSION = 2
"""The version of the rules. `a2rl label` computes labels of an earlier version anew."""
TIMEOUT_S, MAX_CPU_S = 100.0, 12
MAX_MEMORY_BYTES = 900 << 20


class SubmissionRoute(BaseModel):
    """The route to the checkpoint of a submission."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    submission: int
    chain: tuple[RouteLabel, ...]


class Failure(BaseModel):
    """A reason why a run did not improve the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: FailureType
    confidence: float
    evidence: tuple[Evidence, ...] = ()


class SecondRating(BaseModel):
    """The route as an LLM sees it, which reads the same code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    routes: tuple[Route, ...]
    reason: str = ""
    """Why there are none; empty if there are."""
    dollars: float = 0.0


class ProgramRun(BaseModel):
    """The time of a program that trained or sampled, in seconds of the budget clock."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    activity: Literal["SFT", "RL", "rollout", "training"]
    """`training` is by several methods: the records do not say when one ended and the next began."""
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
    """Why the code could not be labelled; empty if it was."""


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

    A second rating that an earlier record has is kept.
    """
    record = _computed(run, settings)
    known = labels_of(run)
    if known is not None and known.second is not None:
        record = record.model_copy(update={"second": known.second})
    return run.write("labels", record)


def _computed(run: RunDir, settings: Settings) -> LabelsRecord:
    try:
        read = read_apart("a2rl.labels", [str(run.root)], settings, "", TIMEOUT_S, MAX_MEMORY_BYTES, MAX_CPU_S)
        if read.problem:
            raise InfrastructureError(read.problem)
        return LabelsRecord.model_validate_json(read.output)
    except (OSError, ValueError, InfrastructureError) as error:
        log_failure(pipeline_log(run), "the run could not be labelled", error)
        return LabelsRecord(
            seconds=0, chain=(UNKNOWN,), training_type="unknown", version=VERSION, reason=str(error)[:500]
        )
