"""`records/labels.json`: the labels of a run."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from a2rl.labels.routes import Chain, Evidence, FailureType, Route, RouteLabel, TrainingType
from a2rl.run.directory import Record, RunDir

VERSION = 2
"""The version of the rules. `a2rl label` computes labels of an earlier version anew."""


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


__all__ = ["Chain", "Failure", "LabelsRecord", "SecondRating", "SubmissionRoute", "labels_object", "labels_of"]
