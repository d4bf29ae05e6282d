"""Computes a run's improvement over its base model, in the task's own score.

The interval is at the level that the run needs. The gain of the best of several submissions on the items by which it
was chosen is also given without the bias of that choice.
"""

from collections.abc import Sequence
from functools import partial

from a2rl.core.files import read_model
from a2rl.grading.job import GradeResult
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.inputs import hidden_of
from a2rl.run.ranking import chosen_among
from a2rl.scoring.paired import LEVEL, Improvement, compare, corrected, cross_fitted, mean_difference
from a2rl.scoring.score import ItemResult
from a2rl.task_api.catalog import load_grader
from a2rl.task_api.contract import HeadlineGrader


def improvement_of(run: RunDir, items: Sequence[ItemResult]) -> Improvement | None:
    """Compares the results of a model on some items with the base model's results on the same items.

    If the result was chosen on the same items, the interval is corrected for the choice.

    Returns:
        The improvement in points with its 95% interval; None if it cannot be computed.
    """
    baseline = read_model(run.baseline_items, GradeResult).items
    level = corrected(LEVEL, chosen_among(run))
    grader = load_grader(run.spec.task)
    if not isinstance(grader, HeadlineGrader):
        return compare(baseline, items, level, mean_difference)
    return compare(baseline, items, level, partial(grader.improvement, hidden=hidden_of(run)))


def cross_fitted_gain(run: RunDir) -> float | None:
    """Returns the gain, in points, of the best submission without the bias of choosing it on the items that measure it.

    Submissions count in the order in which they were made. Items that could not be judged for all are left out.

    Returns:
        The gain; None under the strict protocol, with a single submission, and where it cannot be computed.
    """
    if run.spec.protocol == "strict" or chosen_among(run) == 1:
        return None
    grades = run.ledger.grades()
    digests = dict.fromkeys(event.weights_digest for event in run.ledger.events(SubmissionAccepted))
    scored = [each for each in digests if each in grades and grades[each].result.score is not None]
    files = [run.baseline_items, *(run.items(digest, run.spec.final_split) for digest in scored)]
    graded = [{item.id: item for item in read_model(path, GradeResult).items} for path in files]
    shared = [each for each in graded[1] if all(_is_judged(items.get(each)) for items in graded)]
    values = [contributions_of(run, [items[each] for each in shared]) for items in graded] if shared else [None]
    known = [each for each in values if each is not None]
    if len(known) < len(graded):
        return None
    return cross_fitted(known[0], known[1:])


def _is_judged(item: ItemResult | None) -> bool:
    return item is not None and item.verdict != "errored"


def contributions_of(run: RunDir, items: Sequence[ItemResult]) -> Sequence[float] | None:
    """Returns what each item adds to the task's score."""
    grader = load_grader(run.spec.task)
    if isinstance(grader, HeadlineGrader):
        return grader.contributions(items, hidden_of(run))
    return [item.value for item in items]
