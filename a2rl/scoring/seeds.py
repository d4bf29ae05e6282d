"""Compares agents over several runs: the mean gain with an interval over runs and items, and differences of agents.

Runs of the same task are graded on the same items. The gains of the items form a table with a row per run and a column
per item, and both are samples: of what the agent might have done, and of what might have been asked. Pooling all cells
would ignore the first (95% intervals then cover 58 to 84%).

    table = [[after - before for each item] for each run]
    gain = mean_gain(table)
    gain.points, gain.ci
"""

from collections.abc import Mapping, Sequence
from math import comb, hypot, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from a2rl.scoring.means import Interval, student_quantile, student_tail
from a2rl.scoring.paired import LEVEL, Improvement, difference_interval

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

K = TypeVar("K")
Table = Sequence[Sequence[float]]
"""Gains, -1 to 1: a row per run, a column per item. A run without a result has a row of zeros."""


def mean_gain(table: Table) -> Improvement:
    """Returns the mean gain of runs in points, with its interval over runs and items.

    The variance of the mean is that of the crossed design, with components for runs and items (Searle, Casella and
    McCulloch 1992, Variance Components, chapter 4). The component of the runs rests on few values, so it counts with
    Student's quantile for them. The component of the items contains two added ones, with the largest and the smallest
    gain that is possible, as in `graded_interval`: runs may agree on all items, and there may be few. With a single
    run, nothing is known about the runs: the interval then holds for that run, not for the agent.

    Raises:
        ValueError: There are no runs or no items, or the rows differ in length.
    """
    import numpy as np

    gains = _as_array(table)
    mean = float(gains.mean())
    if len(gains) == 1:
        return Improvement(100 * mean, difference_interval(list(table[0]), LEVEL))
    sample = np.append(gains.mean(axis=0), (1.0, -1.0))
    middle, items = float(sample.mean()), max(_squared_error(sample), _noise(gains))
    reach = sqrt(_quantile(sample.size - 1) ** 2 * items + _quantile(len(gains) - 1) ** 2 * _runs_component(gains))
    low, high = min(mean, middle - reach), max(mean, middle + reach)
    return Improvement(100 * mean, Interval(100 * max(-1.0, low), 100 * min(1.0, high)))


def interval_over_runs(gains: Sequence[float], intervals: Sequence[Sequence[Interval]]) -> Interval:
    """Returns the interval of the mean gain in points of runs whose items cannot be combined in one table.

    It is no narrower than the runs' own intervals make it: a few runs can have the same gain by chance. Errors on the
    same items are in the same direction; those on different ones partly cancel.

    Args:
        gains: One for each run.
        intervals: Those of the runs that have one; those on the same items together.
    """
    if len(gains) < 2:
        return Interval(-100.0, 100.0)
    between = _quantile(len(gains) - 1) * stdev(gains) / sqrt(len(gains))
    within = hypot(*(sum(ci.high - ci.low for ci in same) / 2 for same in intervals)) / len(gains)
    mean, reach = fmean(gains), max(between, within)
    return Interval(max(-100.0, mean - reach), min(100.0, mean + reach))


def _as_array(table: Table) -> "Array":
    import numpy as np

    if not table or not table[0] or len({len(row) for row in table}) > 1:
        raise ValueError("the table needs at least one run and one item, and as many items in each run")
    gains: Array = np.array(table, dtype=float)
    return gains


def _runs_component(gains: "Array") -> float:
    """Returns the squared standard error from the differences between runs; it is unknown, and 0, for a single one."""
    if len(gains) == 1:
        return 0.0
    return max(0.0, _squared_error(gains.mean(axis=1)) - _noise(gains))


def _squared_error(values: "Array") -> float:
    """Returns the squared standard error of the mean of independent values."""
    return float(values.var(ddof=1) / values.size) if values.size > 1 else 0.0


def _noise(gains: "Array") -> float:
    """Returns what the interaction of runs and items adds to the squared standard error; both components contain it."""
    runs, items = gains.shape
    if items == 1:
        return 0.0
    rest = gains - gains.mean(axis=1, keepdims=True) - gains.mean(axis=0) + gains.mean()
    return float((rest**2).sum() / ((runs - 1) * (items - 1)) / (runs * items))


def _quantile(freedom: int) -> float:
    return student_quantile((1 - LEVEL) / 2, max(1, freedom))


class Comparison(NamedTuple):
    """The difference between two agents on one task."""

    points: float
    ci: Interval
    p: float
    """Two-sided p-value of no difference; not corrected for other comparisons (see `holm`)."""


def compare_agents(one: Table, other: Table) -> Comparison:
    """Returns the gain of `other` minus that of `one`, on the same items of a task.

    Runs of two agents are independent of each other even with equal seeds, so that the runs' components add; the
    items are shared, so that the items' component is that of the differences (Welch's t-test over runs).

    Raises:
        ValueError: The agents were graded on different numbers of items.
    """
    before, after = _as_array(one), _as_array(other)
    if before.shape[1] != after.shape[1]:
        raise ValueError("the runs were graded on different items")
    points = float(after.mean() - before.mean())
    items = max(_squared_error(after.mean(axis=0) - before.mean(axis=0)), 1 / before.shape[1] ** 2)
    variances = [items, _runs_component(before), _runs_component(after)]
    freedoms = [before.shape[1] - 1, len(before) - 1, len(after) - 1]
    variance = sum(variances)
    # Welch and Satterthwaite: the degrees of freedom of a sum of variances that are known with different precision.
    freedom = variance**2 / sum(part**2 / max(1, each) for part, each in zip(variances, freedoms, strict=True))
    error = sqrt(variance)
    p = 2 * student_tail(abs(points) / error, freedom)
    reach = student_quantile((1 - LEVEL) / 2, freedom) * error
    low, high = max(-2.0, points - reach), min(2.0, points + reach)  # each gain is between -1 and 1
    return Comparison(100 * points, Interval(100 * low, 100 * high), p)


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Returns p-values corrected for their number (Holm 1979, Scandinavian Journal of Statistics 6: 65-70)."""
    largest, corrected = 0.0, {}
    for rank, name in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return corrected


def interquartile_mean(values: Sequence[float]) -> float:
    """Returns the mean of the middle half of the values; values on the border count partly.

    Tasks differ in how far a gain can go, so that a mean over tasks rests on the largest. Source: Agarwal et al. 2021,
    arXiv 2108.13264.
    """
    ordered, quarter = sorted(values), len(values) / 4
    weights = [max(0.0, min(place + 1, len(ordered) - quarter) - max(place, quarter)) for place in range(len(ordered))]
    return sum(weight * value for weight, value in zip(weights, ordered, strict=True)) / sum(weights)


def expected_best(gains: Sequence[float], runs: int) -> float | None:
    """Returns the expected best gain of so many runs, without bias; None if there are fewer.

    It is the mean of the best over all choices of so many of the given runs, as in pass@k (Chen et al. 2021, arXiv
    2107.03374).
    """
    if not 1 <= runs <= len(gains):
        return None
    ordered = sorted(gains)
    total = sum(comb(rank, runs - 1) * gain for rank, gain in enumerate(ordered))
    return total / comb(len(gains), runs)
