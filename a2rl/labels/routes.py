"""The vocabulary of labels: routes, failure types and training types, and what a label is based on."""

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

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


class Evidence(BaseModel):
    """What a label is based on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Literal["trace", "code", "process", "log", "weights", "ledger"]
    what: str
    """What was found, in words."""
    commit: str = ""
    """The state of the agent's code, in the run's `code/` repository."""
    file: str = ""
    line: int = 0
    at_s: float | None = None
    """When, in seconds of the run's budget clock."""


class RouteLabel(BaseModel):
    """One step of a route."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
