"""Plays many visits to the shop at once with a model that is being trained: the rollouts of online RL.

The agent gets this file with `shop/` (the shop), `episodes.py` and `decoder` (batched episodes). A visit is one
text, in the form `whole` of shop/transcript.py.

    from rollout import Training, play_goals

    training = Training.load(Path("data"))
    episodes = play_goals(model, tokenizer, training.shop, training.goals[:64], temperature=1.0)
    print(sum(episode.reward for episode in episodes) / len(episodes))
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import episodes
from episodes import Episode
from shop import Goal, Shop
from shop.transcript import Visit


class Training(NamedTuple):
    """A shop and the goals to train on."""

    shop: Shop
    goals: list[Goal]

    @classmethod
    def load(cls, data: Path) -> "Training":
        """Reads the data folder."""
        lines = (data / "goals.jsonl").read_text(encoding="utf-8").splitlines()
        return cls(Shop.open(data / "catalogue"), [Goal.from_json(line) for line in lines])


def play_goals(model: Any, tokenizer: Any, shop: Shop, goals: Sequence[Goal], **settings: Any) -> list[Episode]:
    """Plays one visit for each goal; goals may repeat. `settings`: see `episodes.play`."""
    return episodes.play(model, tokenizer, [Visit(shop, goal, "whole") for goal in goals], **settings)


def for_trl(training: Training, **settings: Any) -> Callable[[list[str], Any], dict[str, Any]]:
    """Returns a `rollout_func` for TRL's GRPOTrainer, whose prompts are the ids of goals; see `episodes.for_trl`.

    GRPOTrainer(..., train_dataset=Dataset.from_list([{"prompt": goal.id} for goal in training.goals]),
                reward_funcs=rewarded, rollout_func=for_trl(training, max_steps=12, temperature=1.0))
    """
    goals = {goal.id: goal for goal in training.goals}
    return episodes.for_trl(lambda name: Visit(training.shop, goals[name], "whole"), **settings)
