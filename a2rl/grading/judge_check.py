"""Tries the judge of a run before the run depends on it."""

from typing import cast

from a2rl.core.settings import Settings
from a2rl.grading.job import judge_of_run
from a2rl.judge.check import check_judge
from a2rl.run.spec import RunSpec
from a2rl.tasks.catalog import load_grader
from a2rl.tasks.contract import JudgedGrader


def check_judge_of(spec: RunSpec, settings: Settings) -> None:
    """Tries the judge of a run with one question; returns at once if the run has none, or if it was tried recently.

    Raises:
        UsageError: The judge does not work as it is configured: its key, its model, or the form of its answer.
        InfrastructureError: The judge does not answer.
    """
    if spec.judge is not None:
        grader = cast(JudgedGrader, load_grader(spec.task))
        check_judge(judge_of_run(spec.judge, settings), grader.trial_question(spec.judge.annotator), settings)
