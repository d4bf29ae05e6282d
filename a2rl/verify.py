"""`a2rl verify`: is a run what it claims to be?

Recomputes the ledger's chain, the checkpoints' and grade files' digests, the scores from the per-item results and the
choice of the best, and compares all of it with the records and with MLflow.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.checkpoint import weights_digest
from a2rl.comparison import improvement_of
from a2rl.errors import A2rlError, IntegrityError
from a2rl.events import BaselineKnown, Graded, PrivateGraded, RunFailed, RunOpened, SubmissionAccepted
from a2rl.failure import why_no_result
from a2rl.files import digest_of, file_digest, read_model
from a2rl.grading.chain import broken_chain
from a2rl.grading.job import GradeResult, score_items, selected_ids
from a2rl.inputs import hidden_of
from a2rl.ranking import best_submission, chosen_among
from a2rl.records import BaselineRecord, ExecuteRecord, GradeRecord, verdict_of
from a2rl.run import RunDir
from a2rl.score import TaskScore
from a2rl.task import Split
from a2rl.tracking import Tracker

TOLERANCE = 1e-6
"""Points; a fit may differ in the last bits from machine to machine."""


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    problem: str
    """Empty if it holds."""


def verify_run(run: RunDir, tracker: Tracker) -> list[Check]:
    """All checks of a run; the run is sound if none has a problem."""
    checks: list[tuple[str, Callable[[RunDir], None]]] = [
        ("the ledger's hash chain", _check_chain),
        ("the settings are those the run was opened with", _check_spec),
        ("every submission ends in exactly one way", _check_chains),
        ("checkpoints are the ones that were graded", _check_checkpoints),
        ("scores follow from the per-item results", _check_items),
        ("the records follow from the ledger", _check_records),
        ("MLflow shows what the ledger says", lambda run: _check_mlflow(run, tracker)),
    ]
    return [Check(what, _problem(check, run)) for what, check in checks]


def _problem(check: Callable[[RunDir], None], run: RunDir) -> str:
    try:
        check(run)
    except A2rlError as error:
        return str(error)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    return ""


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise IntegrityError(problem)


def _check_chain(run: RunDir) -> None:
    run.ledger.verify()


def _check_spec(run: RunDir) -> None:
    opened = run.ledger.events(RunOpened)
    _require(len(opened) == 1, "the ledger does not begin with one run")
    _require(
        # Only what is in the file: a setting that came later was not in the digest of a run from before.
        opened[0].spec_digest == digest_of(run.spec.model_dump(mode="json", exclude_unset=True)),
        "spec.json was changed after the run began",
    )


def _check_chains(run: RunDir) -> None:
    finished = run.read("execute", ExecuteRecord) is not None
    problem = broken_chain(run.ledger.entries(), finished)
    _require(not problem, problem)


def _check_checkpoints(run: RunDir) -> None:
    for digest in {event.weights_digest for event in run.ledger.events(SubmissionAccepted)}:
        _require(
            weights_digest(run.checkpoint(digest)) == digest, f"{run.checkpoint(digest)} is not what was submitted"
        )


def _check_items(run: RunDir) -> None:
    _check_baseline_items(run)
    for path, claimed, digest in _grade_files(run):
        _require(file_digest(path) == digest, f"{path} is not what was graded")
        hidden = hidden_of(run)
        items = read_model(path, GradeResult).items
        recomputed = score_items(run.spec.task, hidden, items, statistics=run.spec.statistics)
        _require(
            _same(recomputed.score, claimed.score),
            f"{path}: the items give {recomputed.score}, the ledger says {claimed.score}",
        )


def _check_baseline_items(run: RunDir) -> None:
    record, known = run.read("baseline", BaselineRecord), run.ledger.events(BaselineKnown)
    if record is None or not known:
        return
    spec, hidden, path = run.spec, hidden_of(run), run.baseline_items
    items = read_model(path, GradeResult).items
    scores: dict[Split, TaskScore | None] = {spec.public_split: known[0].public, "private": known[0].private}
    for split, claimed in scores.items():
        if claimed is not None:
            chosen = set(selected_ids(spec.task, hidden, split, spec.split_seed, statistics=spec.statistics))
            found = [item for item in items if item.id in chosen]
            recomputed = score_items(spec.task, hidden, found, statistics=spec.statistics).score
            _require(
                _same(recomputed, claimed.score),
                f"{path}: the {split} items give {recomputed}, the ledger says {claimed.score}",
            )


def _grade_files(run: RunDir) -> Iterator[tuple[Path, TaskScore, str]]:
    for event in run.ledger.events(Graded):
        if event.items_digest:
            yield run.items(event.weights_digest, run.spec.public_split), event.result, event.items_digest
    for final in run.ledger.events(PrivateGraded):
        yield run.items(final.weights_digest, "private"), final.result, final.items_digest


def _check_records(run: RunDir) -> None:
    record = run.read("grade", GradeRecord)
    if record is None:
        return
    if record.verdict == "failed" and record.final is None:
        _check_failure(run, record)
        return
    best = best_submission(run.ledger)
    _require(record.baseline == _known_baseline(run), "the record's baseline is not the ledger's")
    _require(
        record.submission_id == (best.submission.submission_id if best else None),
        "the record names another best submission than the ledger",
    )
    if best:
        _require(
            record.public is not None and record.public.score == best.score.score,
            "the record's public score is not the ledger's",
        )
    private = run.ledger.events(PrivateGraded)
    if run.spec.protocol == "strict" and record.final is not None:
        _require(
            len(private) == 1 and private[0].result == record.final, "the record's private score is not the ledger's"
        )
    if best and record.final is not None:
        _check_improvement(run, record)


def _check_failure(run: RunDir, record: GradeRecord) -> None:
    """A run has failed only if the ledger says so as well."""
    executed = run.read("execute", ExecuteRecord)
    if record.failed_stage is not None:
        known = any(event.stage == record.failed_stage for event in run.ledger.events(RunFailed))
        _require(known, "the record says that a stage failed, the ledger does not")
    else:
        lacks_score = best_submission(run.ledger) is None
        excused = executed is not None and why_no_result(run, executed) == record.reason
        _require(excused or lacks_score, "the record says that the run failed, the ledger has a result")


def _known_baseline(run: RunDir) -> TaskScore | None:
    known = run.ledger.events(BaselineKnown)
    if not known:
        return None
    return known[0].private if run.spec.protocol == "strict" else known[0].public


def _check_improvement(run: RunDir, record: GradeRecord) -> None:
    """The improvement, its interval and the verdict, once more from the items."""
    accepted = {event.submission_id: event.weights_digest for event in run.ledger.events(SubmissionAccepted)}
    path = run.items(accepted[record.submission_id or 0], run.spec.final_split)
    final = read_model(path, GradeResult)
    difference = improvement_of(run, final.items)
    found = (difference.points, *difference.ci) if difference else (None, None, None)
    claimed = (record.improvement, *(record.improvement_ci or (None, None)))
    _require(all(map(_same, claimed, found)), "the record's improvement is not that of the items")
    if run.spec.statistics > 1:
        _require(record.chosen_among == chosen_among(run), "the record counts another number of submissions")
    _require(verdict_of(final.score, difference) == record.verdict, "the record's verdict is not that of the items")


def _check_mlflow(run: RunDir, tracker: Tracker) -> None:
    mirrored = tracker.mirrored(run)
    _require(bool(mirrored), "MLflow does not know the run: `a2rl report RUN` mirrors it again")
    grades = run.ledger.grades()
    for event in run.ledger.events(SubmissionAccepted):
        if (grade := grades.get(event.weights_digest)) is not None:
            shown = mirrored.get(f"submission {event.submission_id}", {}).get("score")
            _require(
                _same(shown, grade.result.score),
                f"submission {event.submission_id}: MLflow shows {shown}, the ledger {grade.result.score}",
            )
    record = run.read("grade", GradeRecord)
    if record is not None:
        final = record.final.score if record.final else None
        _require(
            _same(mirrored["result"].get("final_score"), final), "MLflow shows another final score than the record"
        )
        shown = mirrored["result"].get("improvement")
        _require(_same(shown, record.improvement), f"MLflow shows an improvement of {shown}, not the record's")
        _require(tracker.head(run) == run.ledger.verify(), "the ledger has grown or changed since the run was closed")


def _same(shown: float | None, true: float | None) -> bool:
    if shown is None or true is None:
        return shown is None and true is None
    return abs(shown - true) < TOLERANCE
