"""Stage `baseline`: what the base model itself scores, same grader, same settings."""

import time

from a2rl.baseline import baseline_key, load_or_grade
from a2rl.events import BaselineKnown
from a2rl.files import digest_of, write_model
from a2rl.grading.job import GradeJob, GradeResult, score_items, selected_ids
from a2rl.grading.pool import grade_now
from a2rl.grading.service import grade_job
from a2rl.inputs import check_inputs
from a2rl.records import BaselineRecord, SetupRecord
from a2rl.run import RunDir
from a2rl.settings import Settings


def baseline(run: RunDir, settings: Settings) -> BaselineRecord:
    """Finds or grades the baseline and tells the ledger.

    Raises:
        InfrastructureError: it could not be graded. There is no baseline then, and the run cannot go on.
    """
    if (done := run.read("baseline", BaselineRecord)) is not None:
        return done
    started, spec, ready = time.monotonic(), run.spec, run.need("setup", SetupRecord)
    base_model, hidden = check_inputs(run)
    job = grade_job(run, settings.root, base_model, "all", run.grades / "baseline-graded.json")

    def grade(job: GradeJob) -> GradeResult:
        return grade_now(job, settings)

    depends_on = baseline_key(job, ready.model_digest, ready.data_digest, settings)
    items, reused, seconds = load_or_grade(job, depends_on, settings, grade)
    total = score_items(spec.task, hidden, items, statistics=spec.statistics)
    write_model(run.baseline_items, GradeResult(score=total, items=tuple(items)))
    scores = {}
    for split in ("public", "private"):
        chosen = set(selected_ids(spec.task, hidden, split, spec.split_seed, statistics=spec.statistics))
        half = [item for item in items if item.id in chosen]
        scores[split] = score_items(spec.task, hidden, half, statistics=spec.statistics)
    record = BaselineRecord(
        seconds=time.monotonic() - started,
        key=digest_of(depends_on),
        reused=reused,
        graded_s=seconds,
        total=total,
        public=scores["public"],
        private=scores["private"],
    )
    strict = spec.protocol == "strict"
    known = BaselineKnown(
        key=record.key, public=record.public if strict else record.total, private=record.private if strict else None
    )
    run.ledger.append_unless(known, lambda _: True)
    return run.write("baseline", record)
