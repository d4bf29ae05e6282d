"""The judge of a run: it is tried before the run depends on it, and each grade may use a part of `--max-judge-usd`.

Under the strict protocol, the final grade follows those of the submissions. Its price is kept for it, so that a run
whose submissions use up the money still has a result. The price is that of the base model on the same items, or of the
dearest submission.
"""

from pathlib import Path
from typing import cast

from a2rl.config.params import load_params
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.grading.job import judge_of
from a2rl.judge.account import Account
from a2rl.judge.client import DOLLARS
from a2rl.judge.params import JudgeConfig, JudgeParams
from a2rl.judge.trial import check_judge
from a2rl.run.directory import RunDir
from a2rl.run.records import BaselineRecord
from a2rl.run.spec import RunSpec
from a2rl.task_api.catalog import load_grader
from a2rl.task_api.contract import JudgedGrader, Split


def require_known(judge: JudgeParams, root: Path) -> None:
    """Requires that the judge in the settings of a run is one of this checkout's own.

    Args:
        judge: The judge. A stranger may have named it, to have keys sent to him.

    Raises:
        UsageError: params.yaml does not have it.
    """
    if not load_params(root).knows_judge(judge):
        where = judge.serve or f"{judge.base_url} with the key {judge.api_key_env}"
        raise UsageError(
            f"the run's judge {judge.name or judge.model} is asked at {where}, which params.yaml does not have: "
            "nothing is sent there; if you trust it, add it under `judges`"
        )


def judge_of_run(judge: JudgeParams, settings: Settings) -> JudgeConfig:
    """Configures the judge in the settings of a run.

    Raises:
        UsageError: It is unknown, the key is not set, or the model does not exist.
    """
    require_known(judge, settings.root)
    return judge_of(judge, settings)


def check_judge_of(spec: RunSpec, settings: Settings) -> None:
    """Tries the judge of a run with one question; returns at once if the run has none.

    Raises:
        UsageError: The judge does not work as it is configured: its key, its model, or the form of its answer.
        InfrastructureError: The judge does not answer.
    """
    if spec.judge is not None:
        grader = cast(JudgedGrader, load_grader(spec.task))
        check_judge(judge_of_run(spec.judge, settings), grader.trial_question(spec.judge.annotator))


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
    return base.private.measures.get(DOLLARS, 0.0) * base.private.total
