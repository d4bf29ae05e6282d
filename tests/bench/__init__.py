"""Measures the docs' figures on speed and memory, as ratios within one run.

python -m tests.bench                      # most of them: `make bench`
python -m tests.bench workers sandbox       # some
python -m tests.bench --json               # prints a list of rows on the last line
"""
