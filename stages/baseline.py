"""Stage `baseline`: grades the untrained base model with the same grader and settings as the submissions."""

import time
from collections.abc import Sequence

from a2rl.core.files import digest_of, file_digest, write_model
from a2rl.core.settings import Settings
from a2rl.grading.baseline import load_or_grade
from a2rl.grading.dependencies import baseline_key
from a2rl.grading.grades import grade_job, grade_on_all_gpus
from a2rl.grading.job import GradeResult, ids_of_run, score_items
from a2rl.grading.outputs import keep_copy, outputs_path
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown
from a2rl.run.gpu_share import check_gpus
from a2rl.run.inputs import check_inputs
from a2rl.run.records import BaselineRecord, SetupRecord
from a2rl.scoring.score import ItemResult, TaskScore
from a2rl.task_api.contract import Split


def baseline(run: RunDir, settings: Settings) -> BaselineRecord:
    """Finds or grades the baseline and records it in the ledger.

    Raises:
        InfrastructureError: It could not be graded, or a half that the run needs has no score.
    """
    if (done := run.read("baseline", BaselineRecord)) is not None:
        return done
    started, spec, ready = time.monotonic(), run.spec, run.need("setup", SetupRecord)
    base_model, hidden = check_inputs(run)
    job = grade_job(run, base_model, "all", run.grades / "baseline-graded.json")
    models = [gpu.name for gpu in check_gpus(run, settings).all]

    def score_of(split: Split, items: Sequence[ItemResult]) -> TaskScore:
        ids = set(ids_of_run(spec, hidden, split))
        return score_items(spec.task, hidden, [item for item in items if item.id in ids])

    def problem(items: Sequence[ItemResult]) -> str:
        halves: tuple[Split, ...] = ("public", "private") if spec.protocol == "strict" else ()
        return "; ".join(f"{half} half: {reason}" for half in halves if (reason := score_of(half, items).reason))

    depends_on = baseline_key(job, ready.model_digest, ready.data_digest, settings, models)
    items, reused, seconds, outputs = load_or_grade(
        job, depends_on, settings, lambda job: grade_on_all_gpus(job, run, settings), problem
    )
    if outputs is not None:
        keep_copy(outputs, outputs_path(run.baseline_items))
    total = score_items(spec.task, hidden, items)
    write_model(run.baseline_items, GradeResult(dtype=job.dtype, score=total, items=tuple(items)))

    record = BaselineRecord(
        seconds=time.monotonic() - started,
        key=digest_of(depends_on),
        reused=reused,
        graded_s=seconds,
        total=total,
        public=score_of("public", items),
        private=score_of("private", items),
    )
    run.ledger.append_unless(_known(run, record), lambda _: True)
    return run.write("baseline", record)


def _known(run: RunDir, record: BaselineRecord) -> BaselineKnown:
    is_strict = run.spec.protocol == "strict"
    return BaselineKnown(
        key=record.key,
        public=record.public if is_strict else record.total,
        private=record.private if is_strict else None,
        items_digest=file_digest(run.baseline_items),
    )
