"""Stage `baseline` (DVC): one task's baseline for `tiny`, as a metric that `dvc metrics` shows and compares."""

from pathlib import Path

from a2rl.baseline import BaselineMetrics, baseline_key, store
from a2rl.catalog import load_task
from a2rl.data import ensure_data, hidden_digest
from a2rl.grading.job import GradeJob
from a2rl.grading.pool import grade_now
from a2rl.models import TINY, model_digest, resolve_model
from a2rl.params import Params
from a2rl.settings import Settings
from a2rl.task import Variant


def task_baseline(task: str, variant: Variant, params: Params, settings: Settings) -> BaselineMetrics:
    """Grades `tiny` on the whole eval set, always anew, and writes `baselines/<variant>/<task>/`."""
    folder = settings.baselines / variant / task
    data, model = ensure_data(task, variant, None, settings), resolve_model(TINY, settings)
    job = GradeJob(
        root=settings.root,
        task=task,
        variant=variant,
        hidden=data / "hidden",
        model=model,
        split="all",
        split_seed=params.grading.split_seed,
        backend=params.grading.backend,
        exact=params.grading.exact,
        options=load_task(task, settings.root).choose(params.grading.options.get(task, {})),
        judge=params.judge_for(load_task(task, settings.root), variant),
        result=folder / ".graded.json",
        log=settings.baselines / "cache" / "grader.log",
    )
    job.result.unlink(missing_ok=True)
    try:
        depends_on = baseline_key(job, model_digest(model), hidden_digest(data), settings)
        return store(folder, depends_on, grade_now(job, settings))
    finally:
        Path(job.result).unlink(missing_ok=True)
