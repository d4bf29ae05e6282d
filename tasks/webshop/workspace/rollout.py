"""The shop and the goals to train on, for the rollouts of online RL.

The agent gets this file with `shop/` (the shop), `episodes.py` and `decoder` (batched episodes). A visit is one
text, in the form `whole` of shop/transcript.py.

    from episodes import for_trl, play
    from rollout import Training
    from shop.transcript import Visit

    shop, goals = Training.load(Path("data"))
    visits = [Visit(shop, goal, "whole") for goal in goals[:64]]
    episodes = play(model, tokenizer, visits, max_steps=12, temperature=1.0)
    print(sum(episode.reward for episode in episodes) / len(episodes))
    rollout_func = for_trl(lambda number: Visit(shop, goals[int(number)], "whole"), max_steps=12, temperature=1.0)
"""

from pathlib import Path
from typing import NamedTuple

from shop import Goal, Shop


class Training(NamedTuple):
    """A shop and the goals to train on."""

    shop: Shop
    goals: list[Goal]

    @classmethod
    def load(cls, data: Path) -> "Training":
        """Reads the data folder."""
        lines = (data / "goals.jsonl").read_text(encoding="utf-8").splitlines()
        return cls(Shop.open(data / "catalogue"), [Goal.from_json(line) for line in lines])
