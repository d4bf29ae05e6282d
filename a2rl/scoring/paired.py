"""Compares two models on the same items. The difference in points and its interval are valid even for few items.

An exact test decides the verdict, and the interval agrees with it: if the test finds no difference, the interval
contains zero. Items that are right or wrong are compared by the sign test over the items that differ (McNemar's exact
test), with the score interval of Tango (1998). Graded items are compared by the sign-flip permutation test, with
Student's interval over the differences and two added values. If an item could not be judged, the interval covers both
the best and the worst value that it could have had.

Who picks the best of many scores on the items that also measure it gets a figure that is too high: by 1 to 11 points
without any true difference. Two figures stand beside it here. The interval that decides the verdict allows for the
number of submissions, and the cross-fitted gain picks on one half of the items and measures on the other.

    improvement = compare(baseline_items, items)
    improvement.points, improvement.ci
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from a2rl.scoring.means import Interval, normal_quantile, student_quantile
from a2rl.scoring.score import ItemResult

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.95
ENUMERATED = 16
"""If at most this many items differ, all sign flips are tried: at most 2^16."""
FLIPS = 10_000
FEWEST_BEYOND = 20
"""Otherwise, at least FLIPS random sign flips are tried, and enough to expect this many of them beyond the level on
either side, but at most MOST_FLIPS."""
MOST_FLIPS = 1_000_000
BLOCK = 4_000_000
"""The number of random signs that are in memory at the same time."""
CLOSE = 1e-9
"""Distance from the observed difference at which the search for a root starts. If no item differs, the score test has
another root at the observed difference itself."""
HALVINGS = 40
"""The number of random halvings. Between seeds, the result of 40 differs by about a tenth of its standard error."""


class Improvement(NamedTuple):
    """The difference in points between two models on the same items."""

    points: float
    ci: Interval


Items = Sequence[ItemResult]
Difference = Callable[[Items, Items, float], Improvement | None]
"""A function that computes the improvement from the first results to the second; None if it cannot be computed. Both
contain the same items in the same order, at least one and none errored. The third argument is the level of the
interval."""


def corrected(level: float, chosen_among: int) -> float:
    """Returns the level to use for an interval of the best among several results (Bonferroni correction).

    The permitted error is divided by the number of results, so that the interval of the best one holds at `level`.
    """
    return 1 - (1 - level) / max(1, chosen_among)


def mean_difference(before: Items, after: Items, level: float = LEVEL) -> Improvement | None:
    """Returns the difference that most tasks use: that of the items' mean values."""
    differences = [new.value - old.value for old, new in zip(before, after, strict=True)]
    points = 100 * sum(differences) / len(differences)
    return Improvement(points, difference_interval(differences, level))


def compare(
    baseline: Items, submission: Items, level: float = LEVEL, difference: Difference = mean_difference
) -> Improvement | None:
    """Compares a submission with the baseline on the items that both were graded on.

    Args:
        difference: The figure that is compared.

    Returns:
        The improvement; None if no item was judged for both.
    """
    known = {item.id: item for item in baseline}
    pairs = [(known[item.id], item) for item in submission if item.id in known]
    judged = [pair for pair in pairs if "errored" not in (pair[0].verdict, pair[1].verdict)]
    if not judged:
        return None
    found = _of(judged, level, difference)
    if found is None or len(judged) == len(pairs):
        return found
    worst = _of([(old.settled(1.0), new.settled(0.0)) for old, new in pairs], level, difference)
    best = _of([(old.settled(0.0), new.settled(1.0)) for old, new in pairs], level, difference)
    if worst is None or best is None:
        return None
    low, high = min(found.ci.low, worst.ci.low), max(found.ci.high, best.ci.high)
    return Improvement(found.points, Interval(low, high))


def _of(pairs: Sequence[tuple[ItemResult, ItemResult]], level: float, difference: Difference) -> Improvement | None:
    return difference([old for old, _ in pairs], [new for _, new in pairs], level)


def difference_interval(differences: Sequence[float], level: float) -> Interval:
    """Returns the interval of 100 times the mean of paired differences, each from -1 to 1.

    The interval contains zero unless an exact test rejects a difference of zero.
    """
    if set(differences) <= {-1.0, 0.0, 1.0}:
        gains, losses = differences.count(1.0), differences.count(-1.0)
        interval = tango_interval(gains, losses, len(differences), level)
        return reconciled(interval, sign_test(gains, losses), level)
    return reconciled(graded_interval(differences, level), flip_test(differences, level), level)


def reconciled(interval: Interval, p: float, level: float) -> Interval:
    """Returns the interval, extended to contain zero if the test does not reject a difference of zero.

    Args:
        p: The two-sided p-value of the test.
    """
    if p <= 1 - level:
        return interval
    return Interval(min(interval.low, 0.0), max(interval.high, 0.0))


def sign_test(gains: int, losses: int) -> float:
    """Returns the exact two-sided p-value for these numbers of gained and lost items (McNemar's exact test)."""
    from scipy.stats import binomtest

    return float(binomtest(gains, gains + losses).pvalue) if gains + losses else 1.0


def tango_interval(gains: int, losses: int, items: int, level: float) -> Interval:
    """Returns the score interval of the difference of two paired shares, in points.

    It contains all differences that the score test does not reject, with the nuisance parameter at its most likely
    value (Tango 1998, Statistics in Medicine 17: 891-908). It is never a single point: if no item differs, it says how
    large a difference may have been missed.
    """
    from scipy.optimize import brentq

    z = normal_quantile((1 - level) / 2)

    def beyond(difference: float, sign: int) -> float:
        a, c = 2 * items, -losses * difference * (1 - difference)
        b = -gains - losses + (2 * items - gains + losses) * difference
        lost = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = items * (2 * lost + difference * (1 - difference))
        return gains - losses - items * difference - sign * z * math.sqrt(max(0.0, variance))

    observed = (gains - losses) / items
    low = -1.0 if observed == -1 else float(brentq(beyond, -1.0, observed - CLOSE, args=(1,)))
    high = 1.0 if observed == 1 else float(brentq(beyond, observed + CLOSE, 1.0, args=(-1,)))
    return Interval(100 * low, 100 * high)


def graded_interval(differences: Sequence[float], level: float) -> Interval:
    """Returns Student's interval of 100 times the mean, computed over the differences and two added values.

    The added values are the largest absolute difference and its negative. They keep the interval from being too narrow
    when there are few items. For binary values, it is nearly the interval of Bonett and Price (2012, Journal of
    Educational and Behavioral Statistics 37: 479-488).
    """
    import numpy as np

    largest = max(abs(each) for each in differences) or 1.0
    sample = np.array([*differences, largest, -largest], dtype=float)
    reach = student_quantile((1 - level) / 2, sample.size - 1) * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    middle = float(sample.mean())
    return Interval(max(-100.0, 100 * (middle - reach)), min(100.0, 100 * (middle + reach)))


def flip_test(differences: Sequence[float], level: float) -> float:
    """Returns the two-sided p-value of the sign-flip permutation test.

    The test assumes that every difference could equally well have had the opposite sign. For each side, it computes
    the share of sign flips whose mean is at least as far on that side as the observed mean. The p-value is twice the
    smaller share. If few items differ, all flips are tried; otherwise the observed one and random ones (fixed seed).
    """
    import numpy as np

    moved = np.array([each for each in differences if each != 0], dtype=float)
    if not moved.size:
        return 1.0
    observed, slack = float(moved.sum()), 1e-9 * float(np.abs(moved).sum())
    above = below = total = 0
    for signs in _all_signs(moved.size) if moved.size <= ENUMERATED else _random_signs(moved.size, level):
        sums = signs @ moved
        above += int((sums >= observed - slack).sum())
        below += int((sums <= observed + slack).sum())
        total += len(sums)
    return min(1.0, 2 * min(above, below) / total)


def _all_signs(count: int) -> "Iterator[np.ndarray]":
    import numpy as np

    numbers, places = np.arange(2**count, dtype=np.uint32), np.arange(count, dtype=np.uint32)
    yield 1.0 - 2.0 * ((numbers[:, None] >> places) & 1)


def _random_signs(count: int, level: float) -> "Iterator[np.ndarray]":
    import numpy as np

    rng = np.random.default_rng(0)
    left = min(MOST_FLIPS, max(FLIPS, math.ceil(FEWEST_BEYOND * 2 / (1 - level))))
    yield np.ones((1, count))
    while left > 0:
        size = min(left, max(1, BLOCK // count))
        yield 2.0 * rng.integers(0, 2, (size, count), dtype=np.int8) - 1.0
        left -= size


def cross_fitted(baseline: Sequence[float], submissions: Sequence[Sequence[float]]) -> float | None:
    """Returns the gain, in points, of the submission that half of the items choose, on the other half.

    It is the mean over random halvings, and has no bias from the choice.

    Args:
        baseline: The base model's value of each item.
        submissions: The same of at least one submission, in the order in which they were made: the earliest of equals
            is chosen.

    Returns:
        The gain; None if there are fewer than two items.
    """
    import numpy as np

    if len(baseline) < 2:
        return None
    after = np.array(submissions, dtype=float)
    gains = after - np.array(baseline, dtype=float)
    rng, found = np.random.default_rng(0), []
    for _ in range(HALVINGS):
        order = rng.permutation(len(baseline))
        halves = order[: len(baseline) // 2], order[len(baseline) // 2 :]
        for choosing, measuring in (halves, halves[::-1]):
            chosen = int(np.argmax(after[:, choosing].mean(axis=1)))
            found.append(float(gains[chosen, measuring].mean()))
    return 100 * float(np.mean(found))
