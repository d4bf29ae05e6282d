"""How much of a run's `--max-judge-usd` a grade may use.

Under the strict protocol, the final grade follows those of the submissions. Its price is kept for it, so that a run
whose submissions use up the money still has a result. The price is that of the base model on the same items, or of the
dearest submission.
"""

from a2rl.judge.account import Account
from a2rl.judge.client import DOLLARS
from a2rl.run.directory import RunDir
from a2rl.run.records import BaselineRecord
from a2rl.task_api.contract import Split


def judge_allowance_usd(run: RunDir, split: Split) -> float | None:
    """Returns up to what amount a grade may bring the run's spending on its judge; None without a limit."""
    spec = run.spec
    if spec.max_judge_usd is None or spec.judge is None:
        return None
    if spec.protocol == "paper" or split != spec.public_split:
        return spec.max_judge_usd
    return max(0.0, spec.max_judge_usd - max(_final_usd(run), Account(run.account).dearest_usd(f"-{split}")))


def is_judge_unpaid(run: RunDir, split: Split) -> bool:
    """Says whether a grade on this split can no longer be paid for."""
    allowed = judge_allowance_usd(run, split)
    return allowed is not None and Account(run.account).use().dollars >= allowed


def _final_usd(run: RunDir) -> float:
    """Estimates the price of the final grade from the base model's; 0 before that is known."""
    base = run.read("baseline", BaselineRecord)
    if base is None or not base.private.total:
        return 0.0
    twice = min(run.spec.judge_sample, base.private.total)
    return base.private.measures.get(DOLLARS, 0.0) * (base.private.total + twice)
