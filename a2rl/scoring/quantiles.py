"""Quantiles and tails of the normal distribution and of Student's t.

`scipy.stats` computes them by the same functions of `scipy.special`, but takes a second to import, which would be most
of the time that short commands take. The values are equal to the last bit.
"""


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
