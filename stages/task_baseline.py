"""Stages `graders` and `baseline` (DVC): the score of `tiny` on each task, as a metric that `dvc metrics` shows."""

import json
from pathlib import Path

from a2rl.config.params import Params
from a2rl.core.files import write_atomically
from a2rl.core.settings import Settings
from a2rl.grading.baseline import BaselineMetrics, store
from a2rl.grading.dependencies import baseline_key, code_of, processor
from a2rl.grading.devices import planned_for
from a2rl.grading.job import EngineChoice, GradeJob
from a2rl.grading.pool import grade_now
from a2rl.linux.gpus import CPU
from a2rl.models.base_model import TINY, model_digest, resolve_model
from a2rl.task_api.catalog import load_task
from a2rl.task_api.contract import Variant
from a2rl.task_api.data import ensure_data, hidden_digest


def graders(params: Params, settings: Settings) -> Path:
    """Writes what a grade of each task depends on, so that DVC sees when a baseline is out of date; returns the folder.

    Baselines of DVC are graded on the processor.
    """
    folder = settings.baselines / "graders"
    for task in params.tasks:
        known = {"device": processor(), **code_of(task)._asdict()}
        write_atomically(folder / f"{task}.json", json.dumps(known, indent=2) + "\n")
    return folder


def task_baseline(task: str, variant: Variant, params: Params, settings: Settings) -> BaselineMetrics:
    """Grades `tiny` on the whole eval set, without reusing an earlier result, and writes `baselines/<variant>/<task>/`.

    Raises:
        InfrastructureError: It could not be graded.
    """
    folder = settings.baselines / variant / task
    data, model = ensure_data(task, variant, None, settings), resolve_model(TINY, settings)
    engine = EngineChoice.of(params.grading.backend, params.grading.dtype, params.grading.vllm, model)
    job = GradeJob(
        root=settings.root,
        task=task,
        variant=variant,
        hidden=data / "hidden",
        model=model,
        split="all",
        split_seed=params.grading.split_seed,
        **dict(engine),
        exact=params.grading.exact,
        options=load_task(task, settings.root).choose(params.grading.options.get(task, {})),
        judge=params.judge_for(load_task(task, settings.root), variant),
        result=folder / ".graded.json",
        log=settings.baselines / "cache" / "grader.log",
    )
    job = planned_for(CPU, job, model)
    job.result.unlink(missing_ok=True)
    try:
        depends_on = baseline_key(job, model_digest(model), hidden_digest(data), settings)
        return store(folder, depends_on, grade_now(job, settings, [CPU]))
    finally:
        Path(job.result).unlink(missing_ok=True)
