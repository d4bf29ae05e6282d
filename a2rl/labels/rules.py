"""The rules of labels: which route follows from what was traced of a program while it ran.

A trainer of a library has the route of its class. A loop of a program's own is told by its signs: those that its code
has, and whether it generated text before its steps.
"""

from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

from a2rl.labels.records import Route

TRAINERS: dict[str, Route] = {
    "SFTTrainer": "SFT", "Trainer": "SFT", "Seq2SeqTrainer": "SFT", "GKDTrainer": "SFT", "IterativeSFTTrainer": "SFT",
    "DPOTrainer": "DPO", "KTOTrainer": "DPO", "ORPOTrainer": "DPO", "CPOTrainer": "DPO", "BCOTrainer": "DPO",
    "OnlineDPOTrainer": "DPO", "XPOTrainer": "DPO", "NashMDTrainer": "DPO", "SimPOTrainer": "DPO",
    "GRPOTrainer": "GRPO", "RLOOTrainer": "GRPO", "AsyncGRPOTrainer": "GRPO", "PPOTrainer": "PPO",
    "PPOv2Trainer": "PPO", "RayPPOTrainer": "PPO",
}  # fmt: skip
"""The routes of the classes that train, by the last part of their name."""
REWARD_MODELS = frozenset({"RewardTrainer", "PRMTrainer"})
"""Those that train a model of rewards rather than the one that is submitted."""
LIBRARIES = frozenset({"trl", "transformers", "unsloth", "unsloth_compiled_cache", "verl"})
"""The packages whose trainers these are."""
EPISODE_SETTINGS = frozenset({"rollout_func", "environment_factory", "tools"})
"""Settings with which a trainer gets its answers from episodes of several turns."""


class Sign(Enum):
    """What was seen of a loop that trains."""

    GENERATES = auto()
    """The model generated text before a step."""
    FILTERS = auto()
    """Generated texts are kept if they pass a check."""
    EPISODES = auto()
    """What answers a generated text is part of the next prompt."""
    IMITATES = auto()
    """A cross-entropy, or the loss of a model that was given labels."""
    REWARDS = auto()
    """Log-probabilities are multiplied by rewards or advantages."""
    GROUPS = auto()
    """Rewards are compared with the mean of several."""
    VALUES = auto()
    """There is a value head or a critic."""
    PREFERENCES = auto()
    """A log-sigmoid of log-probabilities."""


class Rule(NamedTuple):
    """A route, if a loop has these signs and lacks the others."""

    route: Route
    confidence: float
    why: str
    has: frozenset[Sign]
    lacks: frozenset[Sign] = frozenset()


RULES = (
    Rule("DPO", 0.9, "a preference loss", frozenset({Sign.PREFERENCES}), frozenset({Sign.REWARDS})),
    Rule("online RL", 0.9, "log-probabilities are weighted with rewards of episodes",
         frozenset({Sign.REWARDS, Sign.EPISODES})),
    Rule("PPO", 0.85, "log-probabilities are weighted with rewards and a value",
         frozenset({Sign.REWARDS, Sign.VALUES})),
    Rule("GRPO", 0.85, "log-probabilities are weighted with rewards, relative to their mean",
         frozenset({Sign.REWARDS, Sign.GROUPS})),
    Rule("PPO", 0.8, "log-probabilities are weighted with rewards", frozenset({Sign.REWARDS})),
    Rule("rejection sampling", 0.85, "the model's own answers that passed a check are imitated",
         frozenset({Sign.GENERATES, Sign.FILTERS})),
    Rule("SFT", 0.9, "texts are imitated", frozenset({Sign.IMITATES}), frozenset({Sign.GENERATES})),
    Rule("SFT", 0.6, "texts are imitated, and something is generated", frozenset({Sign.IMITATES})),
    Rule("SFT", 0.75, "an optimizer takes steps, and nothing is generated", frozenset(),
         frozenset({Sign.GENERATES})),
    Rule("unknown", 0.3, "an optimizer takes steps, and something is generated", frozenset()),
)  # fmt: skip
"""The first one that fits counts."""


def rule_of(signs: Collection[Sign]) -> Rule:
    """Returns the rule for a loop with these signs."""
    return next(rule for rule in RULES if rule.has <= set(signs) and not rule.lacks & set(signs))


def trainer_route(name: str) -> Route | None:
    """Returns the route of a library's trainer by its full name, such as `trl.SFTTrainer`; None for other classes."""
    package, _, last = name.rpartition(".")
    if package.partition(".")[0] not in LIBRARIES:
        return None
    return TRAINERS.get(last.lstrip("_").removeprefix("Unsloth") or last)


def route_of_trainer(route: Route, signs: Collection[Sign], settings: Collection[str]) -> Route:
    """Returns what a trainer of a library does with the texts that it is given.

    Args:
        signs: What was seen before it began.
        settings: Which of its arguments are set.
    """
    if route == "GRPO" and EPISODE_SETTINGS & set(settings):
        return "online RL"
    return "rejection sampling" if route == "SFT" and {Sign.GENERATES, Sign.FILTERS} <= set(signs) else route
