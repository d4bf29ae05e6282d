"""The stages of the pipeline as plain functions: each reads earlier records of a run, writes one, and can be repeated.

Nothing here depends on Prefect: `flows/` wraps these functions. DVC calls `python -m stages` for what runs need first.
"""
