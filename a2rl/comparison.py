"""The improvement of a run's result over its base model: by the task's own figure, at the level that the run needs."""

from collections.abc import Sequence
from functools import partial

from a2rl.catalog import load_grader
from a2rl.files import read_model
from a2rl.grading.job import GradeResult
from a2rl.inputs import hidden_of
from a2rl.paired import LEVEL, Improvement, compare, corrected, first_difference, mean_difference
from a2rl.ranking import chosen_among
from a2rl.run import RunDir
from a2rl.score import ItemResult
from a2rl.task import HeadlineGrader


def improvement_of(run: RunDir, items: Sequence[ItemResult]) -> Improvement | None:
    """How much better the items' model is than the base model, on these items; None where it cannot be said.

    Where the result was chosen on the same items, the interval holds at 95% for all that it was chosen among.
    """
    baseline = read_model(run.baseline_items, GradeResult).items
    if run.spec.statistics == 1:
        return first_difference(baseline, items)
    level = corrected(LEVEL, chosen_among(run))
    grader = load_grader(run.spec.task)
    if not isinstance(grader, HeadlineGrader):
        return compare(baseline, items, level, mean_difference)
    return compare(baseline, items, level, partial(grader.improvement, hidden=hidden_of(run)))
