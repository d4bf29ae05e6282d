"""Imitate an expert; then shop for the training goals and reward what the shop does.

A model soon memorises the products of one shop, which does not help in another one; so their ids are replaced at random
in the examples. Some of the expert's actions are replaced by mistakes, which the model does not imitate: it learns how
to go on after one.
"""

import random
import re
import sys
from pathlib import Path
from typing import Any

from routes import CORES, Example, Grpo, Part

IN_BRACKETS = re.compile(r"(?<=\[)[^\[\]]+(?=\])")


class Route:
    """Learns to buy what a goal asks for."""

    MAX_STEPS = 12
    MISTAKES = 0.08
    """Share of the expert's actions that are replaced by mistakes."""

    def __init__(self, data: Path, seed: int) -> None:
        sys.path.insert(0, str(data))
        from rollout import Training

        self.training, self.seed = Training.load(data), seed
        random.Random(seed).shuffle(self.training.goals)

    def examples(self) -> list[Example]:
        """Returns the expert's visits that get the full reward."""
        rng = random.Random(self.seed)
        return [parts for goal in self.training.goals if (parts := self.shop_for(goal, rng))]

    def shop_for(self, goal: Any, rng: random.Random) -> Example:
        """Returns a visit as a text to imitate; an empty tuple unless it gets the full reward in time."""
        from shop import Expert
        from shop.transcript import Visit

        visit, expert = Visit(self.training.shop, goal, "whole"), Expert()
        parts, ids = [Part(visit.prompt, False)], set[str]()
        while not visit.done and len(visit.actions) < self.MAX_STEPS:
            ids |= {part.text for part in visit.session.page.parts() if part.kind == "product"}
            action = right = expert.act(visit.session.page)
            if rng.random() < self.MISTAKES:
                action = self.mistake(visit.session.page, rng)
            answer = visit.write(action)
            parts += [Part(f" {action}\n", action == right), Part(answer, False)]
        return self.renumbered(parts, ids, rng) if visit.reward == 1 else ()

    def renumbered(self, parts: list[Part], ids: set[str], rng: random.Random) -> Example:
        """Returns the example with the ids replaced by those of other products."""
        shop = self.training.shop
        others = {each: shop.product(rng.randrange(len(shop))).id for each in sorted(ids)}
        return tuple(
            Part(IN_BRACKETS.sub(lambda found: others.get(found[0], found[0]), part.text), part.learn) for part in parts
        )

    @staticmethod
    def mistake(page: Any, rng: random.Random) -> str:
        """Returns the click on something at random that the page offers, except a purchase."""
        offered = [part.text for part in page.clickable().values() if part.text not in ("Search", "Buy Now")]
        return f"click[{rng.choice(offered)}]" if offered else "click[Buy Now]"

    def grpo(self) -> Grpo:
        """Returns rollouts of the training goals."""
        from rollout import for_trl

        rollout = for_trl(
            self.training,
            max_steps=self.MAX_STEPS,
            max_new_tokens=32,
            max_invalid=3,
            temperature=1.0,
            seed=self.seed,
            processes=CORES,
        )
        return Grpo.of_episodes((goal.id for goal in self.training.goals), rollout)
