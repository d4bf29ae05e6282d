"""`a2rl verify`: checks that a run's results are consistent and unchanged.

It recomputes the ledger's hash chain, the digests of checkpoints and grade files, the scores from the per-item results,
and the choice of the best submission. It compares all of these with the records and with MLflow.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import A2rlError, IntegrityError
from a2rl.core.files import digest_of, file_digest, read_model
from a2rl.grading.job import GradeResult, ids_of_run, score_items
from a2rl.grading.pruning import invalid_pruning, pruned
from a2rl.grading.submission_states import invalid_transition
from a2rl.models.checkpoint import weights_digest
from a2rl.results.comparison import cross_fitted_gain, improvement_of
from a2rl.results.draw_check import check_draw
from a2rl.results.tracking import Tracker
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown, Graded, PrivateGraded, RunFailed, RunOpened, SubmissionAccepted
from a2rl.run.failure import why_no_result
from a2rl.run.inputs import hidden_of
from a2rl.run.judge_record import judge_record
from a2rl.run.ranking import best_submission, chosen_among
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, verdict_of
from a2rl.scoring.score import TaskScore
from a2rl.tasks.contract import Split

TOLERANCE = 1e-6
"""In points. A score that is fitted to data may differ in the last bits between machines."""


class Check(NamedTuple):
    """The outcome of one check."""

    what: str
    problem: str
    """Empty if the check passed."""


def verify_run(run: RunDir, tracker: Tracker) -> list[Check]:
    """Runs all checks of a run; the run is sound if none of them finds a problem."""
    # A new object, so that the checks use what is on disk now and nothing that the caller has read before.
    run = RunDir(run.root)
    checks: list[tuple[str, Callable[[RunDir], None]]] = [
        ("the ledger's hash chain", _check_chain),
        ("the settings are those the run was opened with", _check_spec),
        ("the eval set follows from the draw that the run committed to", check_draw),
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
        # Only fields in the file count: settings added by later versions are not part of the digest of an older run.
        opened[0].spec_digest == digest_of(run.spec.model_dump(mode="json", exclude_unset=True)),
        "spec.json was changed after the run began",
    )


def _check_chains(run: RunDir) -> None:
    finished = run.read("execute", ExecuteRecord) is not None
    problem = invalid_transition(run.ledger.entries(), finished)
    _require(not problem, problem)


def _check_checkpoints(run: RunDir) -> None:
    entries = run.ledger.entries()
    _require(not (problem := invalid_pruning(run.spec, entries)), problem)
    accepted = {entry.event.weights_digest for entry in entries if isinstance(entry.event, SubmissionAccepted)}
    for digest in accepted - pruned(entries):
        _require(
            weights_digest(run.checkpoint(digest)) == digest,
            f"{run.checkpoint(digest)} was changed after it was submitted",
        )


def _check_items(run: RunDir) -> None:
    _check_baseline_items(run)
    for path, split, claimed, digest in _grade_files(run):
        _require(file_digest(path) == digest, f"{path} was changed after grading")
        hidden = hidden_of(run)
        items = read_model(path, GradeResult).items
        _require(
            [item.id for item in items] == ids_of_run(run.spec, hidden, split),
            f"{path} does not have the items of the {split} split",
        )
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
            chosen = set(ids_of_run(spec, hidden, split))
            found = [item for item in items if item.id in chosen]
            recomputed = score_items(spec.task, hidden, found, statistics=spec.statistics).score
            _require(
                _same(recomputed, claimed.score),
                f"{path}: the {split} items give {recomputed}, the ledger says {claimed.score}",
            )


def _grade_files(run: RunDir) -> Iterator[tuple[Path, Split, TaskScore, str]]:
    for event in run.ledger.events(Graded):
        if event.items_digest:
            split = run.spec.public_split
            yield run.items(event.weights_digest, split), split, event.result, event.items_digest
    for final in run.ledger.events(PrivateGraded):
        yield run.items(final.weights_digest, "private"), "private", final.result, final.items_digest


def _check_records(run: RunDir) -> None:
    record = run.read("grade", GradeRecord)
    if record is None:
        return
    _check_account(run, record)
    if record.verdict == "failed" and record.final is None:
        _check_failure(run, record)
        return
    best = best_submission(run.ledger)
    _require(record.baseline == _known_baseline(run), "the record's baseline is not the ledger's")
    _require(
        record.submission_id == (best.submission.submission_id if best else None),
        "the record names a different best submission than the ledger",
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
    """Checks that the ledger also says that the run has failed."""
    executed = run.read("execute", ExecuteRecord)
    if record.failed_stage is not None:
        known = any(event.stage == record.failed_stage for event in run.ledger.events(RunFailed))
        _require(known, "the record says that a stage failed, but the ledger does not")
    else:
        lacks_score = best_submission(run.ledger) is None
        excused = executed is not None and why_no_result(run, executed) == record.reason
        _require(excused or lacks_score, "the record says that the run failed, but the ledger has a result")


def _check_account(run: RunDir, record: GradeRecord) -> None:
    if record.judge is None:
        return
    known = judge_record(run)
    _require(
        known is not None and known.use == record.judge.use,
        f"the record's judge was paid ${record.judge.use.dollars:.4f}, but {run.account.name} says something else",
    )


def _known_baseline(run: RunDir) -> TaskScore | None:
    known = run.ledger.events(BaselineKnown)
    if not known:
        return None
    return known[0].private if run.spec.protocol == "strict" else known[0].public


def _check_improvement(run: RunDir, record: GradeRecord) -> None:
    """Recomputes the improvement, its interval and the verdict from the items."""
    accepted = {event.submission_id: event.weights_digest for event in run.ledger.events(SubmissionAccepted)}
    path = run.items(accepted[record.submission_id or 0], run.spec.final_split)
    final = read_model(path, GradeResult)
    difference = improvement_of(run, final.items)
    found = (difference.points, *difference.ci) if difference else (None, None, None)
    claimed = (record.improvement, *(record.improvement_ci or (None, None)))
    _require(all(map(_same, claimed, found)), "the record's improvement does not follow from the items")
    if run.spec.statistics > 1:
        _require(record.chosen_among == chosen_among(run), "the record counts a different number of submissions")
    if record.cross_fitted is not None:
        problem = "the record's cross-fitted gain does not follow from the items"
        _require(_same(record.cross_fitted, cross_fitted_gain(run)), problem)
    _require(
        verdict_of(final.score, difference) == record.verdict, "the record's verdict does not follow from the items"
    )


def _check_mlflow(run: RunDir, tracker: Tracker) -> None:
    mirrored = tracker.mirrored(run)
    _require(bool(mirrored), f"MLflow does not have the run: `a2rl report {run.id}` mirrors it again")
    grades = run.ledger.grades()
    for event in run.ledger.events(SubmissionAccepted):
        if (grade := grades.get(event.weights_digest)) is not None:
            shown = mirrored.get(f"submission {event.submission_id}", {}).get("score")
            _require(
                _same(shown, grade.result.score),
                f"submission {event.submission_id}: MLflow shows {shown}, the ledger says {grade.result.score}",
            )
    record = run.read("grade", GradeRecord)
    if record is not None:
        final = record.final.score if record.final else None
        _require(
            _same(mirrored["result"].get("final_score"), final), "MLflow shows a different final score than the record"
        )
        shown = mirrored["result"].get("improvement")
        _require(
            _same(shown, record.improvement),
            f"MLflow shows an improvement of {shown}, the record says {record.improvement}",
        )
        _require(tracker.head(run) == run.ledger.verify(), "the ledger has grown or changed since the run was closed")


def _same(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) < TOLERANCE
