"""What the base model and the result wrote for one and the same item: figures alone do not show how a model plays."""

from collections.abc import Sequence
from typing import NamedTuple

from a2rl.score import ItemResult

SHOWN = 700
"""Characters of an answer at most."""


class Example(NamedTuple):
    """An item on the page."""

    title: str
    before: str
    """What the base model wrote."""
    after: str
    """What the result did."""


def choose(baseline: Sequence[ItemResult], result: Sequence[ItemResult]) -> list[Example]:
    """The item with the largest gain, and the one that the result is worst at; of equals the first.

    Args:
        baseline: at least the items of `result`.
    """
    before = {item.id: item for item in baseline}
    judged = [item for item in result if "errored" not in (item.verdict, before[item.id].verdict)]
    if not judged:
        return []
    best = max(judged, key=lambda item: item.value - before[item.id].value)
    worst = min(judged, key=lambda item: item.value)
    improved = best.value > before[best.id].value
    chosen = [("better than before", best)] if improved else []
    if worst.value < 1 and not (improved and worst is best):
        chosen.append(("not solved", worst))
    return [Example(f"{item.id}: {title}", _cut(before[item.id]), _cut(item)) for title, item in chosen]


def _cut(item: ItemResult) -> str:
    text = item.answer.strip()
    return text if len(text) <= SHOWN else f"{text[:SHOWN].rstrip()} ..."
