"""Example items: the answers of the base model and of the result side by side, because figures alone say little."""

from collections.abc import Sequence
from typing import NamedTuple

from a2rl.core.files import read_model
from a2rl.grading.job import GradeResult
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry
from a2rl.scoring.score import ItemResult

MAX_CHARS = 700
"""Longer answers are cut off."""


class Example(NamedTuple):
    """An item on the page."""

    title: str
    before: str
    """The base model's answer."""
    after: str
    """The result's answer."""


def examples_of(run: RunDir, entries: Sequence[Entry], counts: int | None) -> list[Example]:
    """Returns no examples if the run has no result, or if its items were deleted."""
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionAccepted) and event.submission_id == counts:
            paths = (run.baseline_items, run.items(event.weights_digest, run.spec.final_split))
            if all(path.is_file() for path in paths):
                baseline, result = (read_model(path, GradeResult).items for path in paths)
                return choose(baseline, result)
    return []


def choose(baseline: Sequence[ItemResult], result: Sequence[ItemResult]) -> list[Example]:
    """Chooses the item with the largest gain and the item with the result's worst score. Of equal items, the first one
    is chosen.

    Args:
        baseline: The base model's results, at least for the items of `result`.
        result: The results of the final submission.
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
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS].rstrip()} ..."
