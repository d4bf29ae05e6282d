"""How each task is learned: what SFT imitates, what GRPO rolls out and rewards. Another task needs one more module."""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from datasets import Dataset

ON_GPU = torch.cuda.is_available()
CORES = torch.get_num_threads()
"""That this run may use."""


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
    """How much of a budget that has room for both goes to SFT before it."""

    @classmethod
    def of_episodes(cls, names: Iterable[str], rollout: Any, **more: Any) -> "Grpo":
        """GRPO on episodes that a `rollout_func` plays, and says the rewards of; prompts are the names of episodes."""
        dataset = Dataset.from_list([{"prompt": name} for name in names])
        return cls({}, {"train_dataset": dataset, "reward_funcs": as_rolled_out, "rollout_func": rollout}, **more)


def as_rolled_out(reward: list[float], **_: Any) -> list[float]:
    return reward


class Route(Protocol):
    """What the module `routes.<task>` defines as its `Route`, made from the data folder and a seed."""

    def examples(self) -> list[Example]: ...

    def grpo(self) -> Grpo: ...


def route_to(task: str, data: Path, seed: int) -> Route:
    route: Route = importlib.import_module(f"routes.{task}").Route(data, seed)
    return route
