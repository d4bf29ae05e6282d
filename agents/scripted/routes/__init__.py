"""How each task is learned: what SFT imitates, what GRPO rolls out and rewards. Another task needs one more module."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from datasets import Dataset

ON_GPU = torch.cuda.is_available()
CORES = torch.get_num_threads()
"""Number of cores that this run may use."""
IGNORED_LABEL = -100
"""The label of tokens that are not to be learned, as PyTorch and TRL have it."""


class Part(NamedTuple):
    """A piece of a text that SFT reads, and whether it learns to write it."""

    text: str
    learn: bool


Example = tuple[Part, ...]


class Grpo(NamedTuple):
    """What GRPO needs to know of a task: arguments of TRL's GRPOConfig and GRPOTrainer."""

    config: dict[str, Any]
    trainer: dict[str, Any]
    sft_share: float = 0.5
    """SFT's share of a long budget; GRPO gets the rest."""

    @classmethod
    def of_episodes(cls, names: Iterable[str], rollout: Any, **more: Any) -> "Grpo":
        """Returns GRPO on episodes whose names are the prompts; the `rollout_func` plays them and returns rewards."""
        dataset = Dataset.from_list([{"prompt": name} for name in names])
        return cls({}, {"train_dataset": dataset, "reward_funcs": reported_reward, "rollout_func": rollout}, **more)


def reported_reward(reward: list[float], **_: Any) -> list[float]:
    """A reward function of TRL's: returns the rewards that the rollout reported."""
    return reward


class Route(Protocol):
    """What the module `routes.<task>` defines as its `Route`, made from the data folder and a seed."""

    def examples(self) -> list[Example]:
        """Returns what SFT imitates."""
        ...

    def grpo(self) -> Grpo:
        """Returns what GRPO rolls out and rewards."""
        ...


def load_route(task: str, data: Path, seed: int) -> Route:
    """Returns the route of a task."""
    route: Route = importlib.import_module(f"routes.{task}").Route(data, seed)
    return route
