"""Simulations of the estimators in a2rl/scoring; too slow for the test suite."""
