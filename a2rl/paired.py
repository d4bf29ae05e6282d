"""How much better a model does than another on the same items: the difference in points, its interval, and a verdict
that holds with few items.

The verdict is an exact test's, the interval agrees with it: where the test sees no difference, zero is in the interval.
Right or wrong: the sign test over the items that differ (exact McNemar), with the score interval of Tango (1998).
Graded: the sign-flip permutation test, with Student's interval over the differences and two made-up ones. An item that
could not be judged counts as the best and as the worst that it may have been, whichever makes the interval longer.

    improvement = compare(baseline_items, items)
    improvement.points, improvement.ci
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from a2rl.score import Interval, ItemResult, bootstrap_interval

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.95
ENUMERATED = 16
"""Differing items up to which all sign flips are tried, 2^16 of them."""
FLIPS = 10_000
FEWEST_BEYOND = 20
"""Random sign flips are so many that at least this many are expected beyond the level; FLIPS or more."""
MOST_FLIPS = 1_000_000
BLOCK = 4_000_000
"""Random signs that are held at once."""
CLOSE = 1e-9
"""To the observed difference, where the score test has another root if no item differs."""


class Improvement(NamedTuple):
    """A paired difference in points: the same items under two models."""

    points: float
    ci: Interval


Items = Sequence[ItemResult]
Difference = Callable[[Items, Items, float], Improvement | None]
"""The improvement from the first results to the second, of the same items in the same order, none errored and at least
one, with the level of its interval; None where there is none to be had."""


def corrected(level: float, chosen_among: int) -> float:
    """The level at which the best of so many holds at `level` (Bonferroni): error shared among all that were tried."""
    return 1 - (1 - level) / max(1, chosen_among)


def mean_difference(before: Items, after: Items, level: float = LEVEL) -> Improvement | None:
    """The usual difference: that of the items' mean values."""
    differences = [new.value - old.value for old, new in zip(before, after, strict=True)]
    points = 100 * sum(differences) / len(differences)
    return Improvement(points, difference_interval(differences, level))


def compare(
    baseline: Items, submission: Items, level: float = LEVEL, difference: Difference = mean_difference
) -> Improvement | None:
    """How much better the submission does on the items that both were graded on; None if both were judged on none.

    Args:
        baseline: the earlier model's results.
        submission: the later model's.
        level: of the interval.
        difference: the figure that is compared.
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


def first_difference(baseline: Items, submission: Items) -> Improvement | None:
    """As runs from before had it (statistics 1): the percentile bootstrap of the items that both were judged on."""
    known = {item.id: item.value for item in baseline if item.verdict != "errored"}
    differences = [item.value - known[item.id] for item in submission if item.verdict != "errored" and item.id in known]
    if not differences:
        return None
    return Improvement(100 * sum(differences) / len(differences), bootstrap_interval(differences))


def difference_interval(differences: Sequence[float], level: float) -> Interval:
    """The interval of 100 times the mean of paired differences, each from -1 to 1; zero is in it unless an exact test
    rejects it."""
    if set(differences) <= {-1.0, 0.0, 1.0}:
        gains, losses = differences.count(1.0), differences.count(-1.0)
        interval = tango_interval(gains, losses, len(differences), level)
        return reconciled(interval, sign_test(gains, losses), level)
    return reconciled(graded_interval(differences, level), flip_test(differences, level), level)


def reconciled(interval: Interval, p: float, level: float) -> Interval:
    """The interval, and zero with it where the test's two-sided p is above its level."""
    if p <= 1 - level:
        return interval
    return Interval(min(interval.low, 0.0), max(interval.high, 0.0))


def sign_test(gains: int, losses: int) -> float:
    """The exact two-sided p of so many items gained and lost; of binary items McNemar's exact test."""
    from scipy.stats import binomtest

    return float(binomtest(gains, gains + losses).pvalue) if gains + losses else 1.0


def tango_interval(gains: int, losses: int, items: int, level: float) -> Interval:
    """The score interval of the difference of two paired shares, in points (Tango 1998, Statistics in Medicine 17:
    891-908): all differences that the score test does not reject, with the nuisance parameter at its most likely.

    It is never empty: where no item differs it says how much could have, and been missed.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    z = float(norm.isf((1 - level) / 2))

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
    """Student's interval of 100 times the mean, over the differences and two more, the largest of them up and down.

    The two keep it from being certain of what few items say: of binary values it is nearly the interval of Bonett and
    Price (2012, Journal of Educational and Behavioral Statistics 37: 479-488).
    """
    import numpy as np
    from scipy.stats import t

    largest = max(abs(each) for each in differences) or 1.0
    sample = np.array([*differences, largest, -largest], dtype=float)
    reach = float(t.isf((1 - level) / 2, sample.size - 1)) * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    middle = float(sample.mean())
    return Interval(max(-100.0, 100 * (middle - reach)), min(100.0, 100 * (middle + reach)))


def flip_test(differences: Sequence[float], level: float) -> float:
    """The two-sided p of the sign-flip permutation test: how often the mean would be as far on one side, or farther, if
    every item might as well have gone the other way; twice the smaller side. All flips of few items are tried, else
    random ones (fixed seed) and the observed one.
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
