"""Stage `baseline`: what the base model itself scores, same grader, same settings."""

import time

from a2rl.baseline import baseline_key, load_or_grade, score_of
from a2rl.events import BaselineKnown
from a2rl.files import digest_of, write_model
from a2rl.grading.job import GradeJob, GradeResult, selected_ids
from a2rl.grading.pool import grade_now
from a2rl.grading.service import grade_job
from a2rl.records import BaselineRecord, SetupRecord
from a2rl.run import RunDir
from a2rl.score import summarise
from a2rl.settings import Settings


def baseline(run: RunDir, settings: Settings) -> BaselineRecord:
    """Finds or grades the baseline and tells the ledger.

    Raises:
        InfrastructureError: it could not be graded. There is no baseline then, and the run cannot go on.
    """
    if (done := run.read("baseline", BaselineRecord)) is not None:
        return done
    started, spec, ready = time.monotonic(), run.spec, run.need("setup", SetupRecord)
    job = grade_job(run, settings.root, ready.base_model, "all", "baseline-graded")

    def grade(job: GradeJob) -> GradeResult:
        return grade_now(job, settings)

    depends_on = baseline_key(job, ready.model_digest, ready.data_digest, settings)
    items, reused = load_or_grade(job, depends_on, settings, grade)
    write_model(run.grades / "baseline.json", GradeResult(score=summarise(items), items=tuple(items)))
    scores = {
        split: score_of(items, selected_ids(spec.task, ready.hidden, split, spec.split_seed))
        for split in ("public", "private")
    }
    record = BaselineRecord(
        seconds=time.monotonic() - started,
        key=digest_of(depends_on),
        reused=reused,
        total=summarise(items),
        public=scores["public"],
        private=scores["private"],
    )
    strict = spec.protocol == "strict"
    known = BaselineKnown(
        key=record.key, public=record.public if strict else record.total, private=record.private if strict else None
    )
    run.ledger.append_unless(known, lambda _: True)
    return run.write("baseline", record)
