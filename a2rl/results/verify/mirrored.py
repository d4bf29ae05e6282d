"""Checks MLflow: its metrics, intervals, tags and digests are those of the ledger and the records."""

from collections.abc import Mapping

from a2rl.results.figures import result_metrics, result_tags, run_params
from a2rl.results.mlflow.store import short_text
from a2rl.results.mlflow.tracking import HEAD_TAG, Mirrored, Tracker
from a2rl.results.verify.check import NotCheckedError, require, same
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord


def check_mlflow(run: RunDir, tracker: Tracker | None) -> None:
    """Compares all that MLflow shows of a run."""
    if tracker is None:
        raise NotCheckedError("MLflow is not here")
    mirrored = tracker.mirrored(run)
    require(bool(mirrored), f"MLflow does not have the run: `a2rl report {run.id}` mirrors it again")
    _check_submissions(run, mirrored)
    _check_params(run, mirrored["result"])
    record = run.read("grade", GradeRecord)
    if record is not None:
        _check_result(run, record, mirrored["result"])
        head = mirrored["result"].tags.get(HEAD_TAG)
        require(head == run.ledger.verify(), "the ledger has grown or changed since the run was closed")


def _check_submissions(run: RunDir, mirrored: Mapping[str, Mirrored]) -> None:
    grades = run.ledger.grades()
    for event in run.ledger.events(SubmissionAccepted):
        grade, name = grades.get(event.weights_digest), f"submission {event.submission_id}"
        if grade is None:
            continue
        shown = mirrored[name] if name in mirrored else Mirrored({}, {}, {})
        figures = {"score": grade.result.score, "improvement": grade.improvement}
        if grade.result.ci is not None:
            figures |= {"score_low": grade.result.ci.low, "score_high": grade.result.ci.high}
        _check_figures(name, shown, figures)
        tags = {"a2rl.weights_digest": event.weights_digest, "a2rl.code_revision": event.code_revision or ""}
        _check_tags(name, shown, tags)


def _check_params(run: RunDir, shown: Mirrored) -> None:
    ready = run.read("setup", SetupRecord)
    if ready is None:
        return
    params = {name: short_text(str(value)) for name, value in run_params(run, ready).items()}
    for name, value in params.items():
        found = shown.params.get(name)
        require(found == value, f"MLflow shows {found} as {name}, the run says {value}")
    digests = {"a2rl.model_digest": ready.model_digest, "a2rl.data_digest": ready.data_digest}
    _check_tags("the run", shown, digests)


def _check_result(run: RunDir, record: GradeRecord, shown: Mirrored) -> None:
    executed = run.read("execute", ExecuteRecord)
    if executed is None and record.failed_stage is None:
        return
    always = {"score": record.final.score if record.final else None, "improvement": record.improvement}
    _check_figures("the result", shown, always | result_metrics(run, record, executed))
    _check_tags("the result", shown, result_tags(run, record))


def _check_figures(what: str, shown: Mirrored, figures: Mapping[str, float | None]) -> None:
    for name, value in figures.items():
        found = shown.metrics.get(name)
        require(same(found, value), f"{what}: MLflow shows {found} as {name}, the run says {value}")


def _check_tags(what: str, shown: Mirrored, tags: Mapping[str, str]) -> None:
    for name, value in tags.items():
        found = shown.tags.get(name, "")
        require(found == short_text(value), f"{what}: MLflow shows {found[:100]!r} as {name}, the run says {value!r}")
