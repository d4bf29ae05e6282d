"""Imitate an expert; then shop for the training goals and reward what the shop does.

A model soon memorises the products of one shop, which does not help in another one; so their ids are replaced at random
in the examples. Some of the expert's actions are replaced by mistakes, which the model does not imitate: it learns how
to go on after one.
"""

import random
import re
from typing import Any

from routes import BaseRoute, Example, Part, Setting

IN_BRACKETS = re.compile(r"(?<=\[)[^\[\]]+(?=\])")


class Route(BaseRoute):
    """Learns to buy what a goal asks for."""

    TURNS = 5
    """How many turns the expert needs on average."""
    MISTAKES = 0.08
    """Share of the expert's actions that are replaced by mistakes."""

    def __init__(self, setting: Setting) -> None:
        from shop import Shop, read_goals

        self.shop = Shop(setting.data / "catalogue")
        self.goals = {goal.id: goal for goal in read_goals(setting.data / "goals.jsonl")}
        self.names = list(self.goals)
        self.random = random.Random(setting.seed)
        self.random.shuffle(self.names)
        self.max_steps = setting.meta["max_steps"]
        self.form = "whole" if setting.meta["variant"] == "mini" else "window"
        self.chat, self.faithful = setting.chat, setting.meta["options"]["prompts"] == "faithful"
        self.can_play = self.form == "whole"
        if not self.can_play:  # each turn is a prompt of its own, and one of a visit is drawn as its example
            self.names *= self.TURNS
        self.play_settings = {"max_invalid": 3}

    def example(self, name: str) -> Example | None:
        """Returns a visit of the expert that gets the full reward; None where it does not in time."""
        from shop import Expert
        from shop.transcript import REFERENCE_SYSTEM, SYSTEM, asked

        visit, expert, system = self.environment(name), Expert(), REFERENCE_SYSTEM if self.faithful else SYSTEM
        prompt, parts, ids = visit.prompt, list[Part](), set[str]()
        turns: list[Example] = []
        while not visit.done and len(visit.actions) < self.max_steps:
            ids |= {part.text for part in visit.session.page.parts() if part.kind == "product"}
            action = right = expert.act(visit.session.page)
            if self.random.random() < self.MISTAKES:
                action = self.mistake(visit.session.page)
            if action == right:
                turns.append(
                    Example(asked(visit, self.chat, system), [Part(("" if self.chat else " ") + action, True)])
                )
            answer = visit.write(action)
            parts += [Part(f" {action}\n", action == right), Part(answer, False)]
        if visit.reward != 1:
            return None
        return self.renumbered(Example(prompt, parts), ids) if self.form == "whole" else self.random.choice(turns)

    def renumbered(self, example: Example, ids: set[str]) -> Example:
        """Returns the example with the ids replaced by those of other products."""
        shop = self.shop
        others = {each: shop.product(self.random.randrange(len(shop))).id for each in sorted(ids)}

        def renumber(text: str) -> str:
            return IN_BRACKETS.sub(lambda found: others.get(found[0], found[0]), text)

        parts = [Part(renumber(part.text), part.learn) for part in example.parts]
        return Example(renumber(example.prompt), parts)

    def mistake(self, page: Any) -> str:
        """Returns the click on something at random that the page offers, except a purchase."""
        offered = [part.text for part in page.clickable().values() if part.text not in ("Search", "Buy Now")]
        return f"click[{self.random.choice(offered)}]" if offered else "click[Buy Now]"

    def environment(self, name: str) -> Any:
        """Returns a visit; it is worth what the shop says."""
        from shop.transcript import Visit

        return Visit(self.shop, self.goals[name], self.form, self.faithful)
