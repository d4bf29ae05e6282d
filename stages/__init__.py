"""The pipeline as plain functions: each reads earlier records of a run, writes one record, and may be called again.

No Prefect here: `flows/` wraps these functions, `python -m stages` (and so DVC) calls them as they are.
"""
