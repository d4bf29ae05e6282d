"""Tests that the fast quantiles are those of scipy.stats, to the last bit."""

from itertools import product

from scipy.stats import norm, t

from a2rl.scoring.means import normal_quantile, student_quantile, student_tail

TAILS = (1e-6, 0.0005, 0.01, 0.025, 0.1, 0.5, 0.9)
FREEDOMS = (1, 2, 2.7, 9, 59.3, 1318)


def test_quantiles_and_tails_are_those_of_scipy_stats() -> None:
    assert [normal_quantile(tail) for tail in TAILS] == [float(norm.isf(tail)) for tail in TAILS]
    pairs = list(product(TAILS, FREEDOMS))
    assert [student_quantile(*pair) for pair in pairs] == [float(t.isf(*pair)) for pair in pairs]
    values = list(product((-3.0, 0.0, 0.7, 2.5, 40.0), FREEDOMS))
    assert [student_tail(*pair) for pair in values] == [float(t.sf(*pair)) for pair in values]
