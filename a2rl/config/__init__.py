"""Reads params.yaml and its suites, and plans the runs of a suite: one specification for each run."""
