"""`a2rl verify`: checks that a run's results are consistent and unchanged.

It recomputes the ledger's hash chain, the digests of inputs, checkpoints and files, the scores from the per-item
results, and the choice of the best submission. It compares all of these with the records, the signatures and MLflow.
"""

from a2rl.results.verify.check import NOTHING_ABSENT, Absent, CheckOutcome, commit_here
from a2rl.results.verify.run import Trust, read_published, trust_of, verify_run

__all__ = [
    "NOTHING_ABSENT", "Absent", "CheckOutcome", "Trust", "commit_here", "read_published", "trust_of", "verify_run",
]  # fmt: skip
