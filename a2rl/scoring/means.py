"""Confidence intervals of a mean of item values, each from 0 to 1, in points.

Right and wrong answers get Wilson's interval. Graded values get the same interval with the effective number of items:
the number of right-or-wrong items whose mean would vary as much (Korn and Graubard 1998, Survey Methodology 24:
193-201). The variance of graded values is unreliable if few of them differ from 0 or 1. It is therefore mixed with the
variance of right-or-wrong items, which is the largest possible one, as if one more item had been observed. Without
that, intervals of mostly equal values cover 86% instead of 95% (`python -m tests.statistics.coverage`).
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

PRIOR_ITEMS = 1
"""The weight of the largest possible variance, in items."""


class Interval(NamedTuple):
    """A 95% confidence interval, in points."""

    low: float
    high: float


def wilson_interval(share: float, items: float) -> Interval:
    """Returns Wilson's score interval of a share (1927, JASA 22: 209-212), in points.

    Args:
        share: The observed share, 0 to 1.
        items: The number of items, which need not be whole.
    """
    z2 = normal_quantile((1 - 0.95) / 2) ** 2
    middle = (share + z2 / (2 * items)) / (1 + z2 / items)
    reach = sqrt(z2 * (max(0.0, share * (1 - share)) / items + z2 / (4 * items * items))) / (1 + z2 / items)
    return Interval(100 * max(0.0, middle - reach), 100 * min(1.0, middle + reach))


def mean_interval(values: Sequence[float]) -> Interval:
    """Returns the interval of 100 times the mean of at least one value from 0 to 1."""
    return wilson_interval(sum(values) / len(values), effective_items(values))


def effective_items(values: Sequence[float]) -> float:
    """Returns the number of right-or-wrong items whose mean would vary as much as the mean of these values."""
    count = len(values)
    mean = sum(values) / count
    largest = mean * (1 - mean)
    if largest <= 0 or count == 1 or set(values) <= {0.0, 1.0}:
        return count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    informative = count - max(values.count(0.0), values.count(1.0))
    mixed = (informative * variance + PRIOR_ITEMS * largest) / (informative + PRIOR_ITEMS)
    return count * largest / min(largest, mixed)


# `scipy.stats` computes these by the same functions of `scipy.special`, but takes a second to import, which would be
# most of the time that short commands take. The values are equal to the last bit.
def normal_quantile(tail: float) -> float:
    """Returns the value that a standard normal variable exceeds with this probability."""
    from scipy.special import ndtri

    return -float(ndtri(tail))


def student_quantile(tail: float, freedom: float) -> float:
    """Returns the value that Student's t with these degrees of freedom exceeds with this probability."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, tail))


def student_tail(value: float, freedom: float) -> float:
    """Returns the probability that Student's t with these degrees of freedom exceeds the value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -value))
