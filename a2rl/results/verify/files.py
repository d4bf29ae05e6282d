"""Checks of a run's files: inputs, checkpoints, code, logs, records and the report, by their digests."""

from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.core.files import file_digest
from a2rl.core.secrets import scrub
from a2rl.grading.pruning import invalid_pruning, pruned
from a2rl.models.base_model import model_digest
from a2rl.models.checkpoint import weights_digest
from a2rl.recording.code_history import check_history, commits
from a2rl.recording.code_reading import changed_copies
from a2rl.results.manifest import changed_files, read_manifest
from a2rl.results.report import report_files
from a2rl.results.verify.check import Absent, NotCheckedError, require
from a2rl.run.directory import RunDir
from a2rl.run.events import RunOpened, SubmissionAccepted
from a2rl.run.inputs import find_base_model, hidden_of, how_to_get, settings_of
from a2rl.run.records import SetupRecord
from a2rl.task_api.data import hidden_digest

SHOWN = 5
"""The number of changed files that are named."""
NOT_CLOSED = "the run is not finished"


def check_inputs(run: RunDir, absent: Absent) -> str:
    """Compares the base model and the hidden data with the digests in the ledger."""
    opened, ready = run.ledger.events(RunOpened), run.read("setup", SetupRecord)
    if not opened or ready is None:
        raise NotCheckedError("the run is not set up")
    known = opened[0]
    require(ready.model_digest == known.model_digest, "the setup record names another base model than the ledger")
    require(ready.data_digest == known.data_digest, "the setup record names other data than the ledger")
    hidden = hidden_of(run)
    require(hidden_digest(hidden.parent) == known.data_digest, f"the data in {hidden} is not that of the run")
    if (base := find_base_model(run)) is None:
        return f"the data; not the base model: {run.spec.model} is not on this machine{how_to_get(run.spec.model)}"
    if model_digest(base) == known.model_digest:
        return ""
    require(absent.base_model, f"the base model in {base} is not that of the run")
    return f"the data; not the base model: what is called {run.spec.model} here is another"


def check_checkpoints(run: RunDir, absent: Absent) -> str:
    """Recomputes the digests of the kept checkpoints."""
    entries = run.ledger.entries()
    require(not (problem := invalid_pruning(run.spec, entries)), problem)
    accepted = {entry.event.weights_digest for entry in entries if isinstance(entry.event, SubmissionAccepted)}
    kept = accepted - pruned(entries)
    for digest in kept - absent.weights:
        require(
            weights_digest(run.checkpoint(digest)) == digest,
            f"{run.checkpoint(digest)} was changed after it was submitted",
        )
    if kept and kept <= absent.weights:
        raise NotCheckedError("the weights are not here")
    missing = len(kept & absent.weights)
    return f"the weights of {missing} checkpoints are not here" if missing else ""


def check_files(run: RunDir, absent: Absent) -> str:
    """Compares all files with the manifest."""
    manifest = read_manifest(run)
    if manifest is None:
        raise NotCheckedError(NOT_CLOSED)
    changed = changed_files(run, manifest, absent=absent.files)
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    require(not changed, "; ".join(changed[:SHOWN]) + more)
    gone = sorted(absent.files & manifest.files.keys())
    without = ", ".join(gone[:SHOWN]) + (f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else "")
    return f"{len(manifest.files) - len(gone)} files" + (f", without {without}" if gone else "")


def check_code(run: RunDir) -> str:
    """Checks the objects of the code's history, its end, and that it has the commit of every submission."""
    try:
        check_history(run.code)
        known = commits(run.code)
    except InfrastructureError as error:
        raise IntegrityError(str(error)) from error
    for event in run.ledger.events(SubmissionAccepted):
        if event.code_revision and event.code_revision not in known:
            raise IntegrityError(f"the code of submission {event.submission_id} is not in the history")
    manifest = read_manifest(run)
    if manifest is not None:
        last = known[0] if known else ""
        require(last == manifest.code, f"the history ends with {last[:12] or 'nothing'}, not {manifest.code[:12]}")
    changed = changed_copies(run.code)
    require(not changed, f"code/ has other files than the last commit: {', '.join(changed[:SHOWN])}")
    return f"{len(known)} commits"


def check_report(run: RunDir) -> None:
    """Checks that the report is the one of the run's end, or the one that follows from its files now."""
    manifest = read_manifest(run)
    if manifest is None:
        raise NotCheckedError(NOT_CLOSED)
    if not run.report.exists():
        raise NotCheckedError(f"there is no page: `a2rl report {run.id}` draws it")
    folder = run.report.parent
    changed = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and file_digest(path) != manifest.files.get(f"{folder.name}/{path.name}")
    ]
    if not changed:
        return
    try:
        drawn = report_files(run, settings_of(run))
    except Exception as error:  # what it is drawn from may be forged, and every way to fail says so
        raise IntegrityError(f"{changed[0]} is another file, and it cannot be drawn again: {error}") from error
    for path in changed:
        text = path.read_text(encoding="utf-8", errors="replace")
        require(
            text == scrub(drawn.get(path.name, "")),
            f"{path} is not that of this run: `a2rl report {run.id}` draws it again",
        )
