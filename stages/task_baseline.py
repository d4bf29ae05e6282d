"""Stage `baseline` (DVC): the score of `tiny` on one task, as a metric that `dvc metrics` shows and compares."""

from pathlib import Path

from a2rl.config.params import Params
from a2rl.core.settings import Settings
from a2rl.grading.baseline import BaselineMetrics, baseline_key, store
from a2rl.grading.devices import CPU
from a2rl.grading.job import EngineChoice, GradeJob
from a2rl.grading.pool import grade_now
from a2rl.models.base_model import TINY, model_digest, resolve_model
from a2rl.tasks.catalog import load_task
from a2rl.tasks.contract import Variant
from a2rl.tasks.data import ensure_data, hidden_digest


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
        backend=engine.backend,
        dtype=engine.dtype,
        vllm=engine.vllm,
        exact=params.grading.exact,
        options=load_task(task, settings.root).choose(params.grading.options.get(task, {})),
        judge=params.judge_for(load_task(task, settings.root), variant),
        result=folder / ".graded.json",
        log=settings.baselines / "cache" / "grader.log",
    )
    job.result.unlink(missing_ok=True)
    try:
        depends_on = baseline_key(job, model_digest(model), hidden_digest(data), settings)
        return store(folder, depends_on, grade_now(job, settings, devices=[CPU]))
    finally:
        Path(job.result).unlink(missing_ok=True)
