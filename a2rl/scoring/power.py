"""How many seeds show a difference between two stacks.

seeds_needed(difference=10.0, deviation=10.0)    # 17 runs of each stack
"""

from math import sqrt

from a2rl.scoring.means import student_quantile
from a2rl.scoring.paired import LEVEL

POWER = 0.8
"""The probability with which a difference is to be shown."""
DIFFERENCE = 10.0
"""The difference between two stacks that a suite is planned for, in points, unless another one is given."""
MOST_SEEDS = 1_000


def seeds_needed(difference: float, deviation: float, level: float = LEVEL, power: float = POWER) -> int | None:
    """Returns the number of runs of each stack with which Student's test shows a true difference, on given items.

    Args:
        difference: The true difference between the mean gains of two stacks, in points; positive.
        deviation: The standard deviation of the gains of one stack's runs, in points; positive.
        level: The confidence level.
        power: The probability of showing it.

    Returns:
        The number of runs, at least 2; None if it is more than `MOST_SEEDS`.
    """
    low, high = 1, MOST_SEEDS
    if probability_of_difference(high, difference, deviation, level) < power:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if probability_of_difference(middle, difference, deviation, level) < power:
            low = middle
        else:
            high = middle
    return high


def probability_of_difference(runs: int, difference: float, deviation: float, level: float = LEVEL) -> float:
    """Returns the probability that the test shows the difference with so many runs of each stack, at least 2."""
    from scipy.special import nctdtr

    freedom, shift = 2 * (runs - 1), difference / (deviation * sqrt(2 / runs))
    return 1 - float(nctdtr(freedom, shift, student_quantile((1 - level) / 2, freedom)))
