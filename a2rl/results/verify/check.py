"""One check of a run and what it found, and the checks of its files and scores.

Inputs, checkpoints, code, logs, records and the report are checked by their digests. Scores must follow from the items,
which must be those of the split.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from a2rl import __version__
from a2rl.config.plan import CHANGED, git_commit
from a2rl.core.errors import A2rlError, InfrastructureError, IntegrityError
from a2rl.core.files import file_digest, read_jsonl, read_model, read_text
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.grading.baseline import BaselineKey
from a2rl.grading.job import GradeResult, ids_of_run, score_items
from a2rl.grading.submission_states import invalid_pruning, pruned
from a2rl.models.base_model import model_digest
from a2rl.models.checkpoint import weights_digest
from a2rl.recording.code_history import GitMissingError, check_history, commits, git_program
from a2rl.recording.code_reading import changed_copies
from a2rl.results.manifest import MAY_CHANGE, VALIDITY, Manifest, changed_files, read_manifest
from a2rl.results.report.page import DATA, report_files
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown, Graded, PrivateGraded, RunClosed, RunOpened, SubmissionAccepted
from a2rl.run.inputs import find_base_model, hidden_of, how_to_get, settings_of
from a2rl.run.ledger import events_of
from a2rl.run.records import BaselineRecord, SetupRecord
from a2rl.scoring.score import ItemResult, TaskScore, same
from a2rl.task_api.contract import Split
from a2rl.task_api.data import hidden_digest

MAX_CHARS = 2000
"""Characters of what a check says: parts of it may be texts of whoever forged a run."""


class CheckOutcome(NamedTuple):
    """The outcome of one check."""

    what: str
    problem: str = ""
    """Empty if the check passed."""
    not_checked: str = ""
    """Why it could not be made; empty if it was made."""
    note: str = ""
    """What a check that passed has found, if it is worth telling."""


class NotCheckedError(A2rlError):
    """A check cannot be made, because something that it needs is not here. That says nothing about the run."""


def made(what: str, check: Callable[[], str | None]) -> CheckOutcome:
    """Makes a check, which raises for a problem, and may return a note."""
    try:
        return CheckOutcome(what, note=printable(check() or "", MAX_CHARS))
    except NotCheckedError as error:
        return CheckOutcome(what, not_checked=printable(str(error), MAX_CHARS))
    except A2rlError as error:
        problem = str(error)
    except FileNotFoundError as error:
        problem = f"{error.filename} is missing"
    except Exception as error:  # noqa: BLE001 - what is checked may be forged, and no way to fail makes it sound
        problem = f"it cannot be checked: {error!r}"
    return CheckOutcome(what, problem=printable(problem, MAX_CHARS))


def require(holds: bool, problem: str) -> None:
    """Raises an IntegrityError unless something holds."""
    if not holds:
        raise IntegrityError(problem)


def require_score(claimed: TaskScore, items: Sequence[ItemResult], run: RunDir, where: str) -> None:
    """Requires that a score follows from its items, with its interval, its counts and all other figures."""
    found = score_items(run.spec.task, hidden_of(run), items)
    of_that_time = {"seconds", "reason"}
    follows = _follows(claimed.model_dump(exclude=of_that_time), found.model_dump(exclude=of_that_time))
    require(follows, f"{where} give {found}, not {claimed}, or other intervals, counts or measures")


def _follows(claimed: Any, found: Any) -> bool:
    """Whether all that is claimed was found, too; an older version may have claimed less."""
    if isinstance(claimed, dict):
        return isinstance(found, dict) and all(
            key in found and _follows(value, found[key]) for key, value in claimed.items()
        )
    if isinstance(claimed, list | tuple):
        return isinstance(found, list | tuple) and len(claimed) == len(found) and all(map(_follows, claimed, found))
    return same(claimed, found) if isinstance(claimed, float) else bool(claimed == found)


class Absent(NamedTuple):
    """Parts of a run that cannot be checked here; that says nothing against the run."""

    weights: frozenset[str] = frozenset()
    """The digests of checkpoints whose weights are elsewhere."""
    base_model: bool = False
    """The base model is only known by its name, and what has that name here may be another build of it."""
    files: frozenset[str] = frozenset()
    """Paths of files in the run directory that were left out."""


NOTHING_ABSENT = Absent()


NOT_COMPARED = {
    "schema_version", "ledger_head",
    "reason", "story", "selection", "sample", "not_valid_because", "comparable", "not_comparable_because",
}  # fmt: skip
"""What another version of a2rl may write in another way: the texts of a report, what names its state, and whether it is
comparable with the paper, which a preset says."""
SHOWN = 5
"""The number of files and figures that are named."""
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
    accepted = {event.weights_digest for event in events_of(entries, SubmissionAccepted)}
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
    require(not changed, _named(changed, "; "))
    gone = sorted(absent.files & manifest.files.keys())
    return f"{len(manifest.files) - len(gone)} files" + (f", without {_named(gone)}" if gone else "")


def _named(names: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(names[:SHOWN]) + more


def check_code(run: RunDir) -> str:
    """Checks the objects of the code's history, its end, and that it has the commit of every submission."""
    try:
        check_history(run.code)
        known = commits(run.code)
    except GitMissingError as error:
        raise NotCheckedError(str(error)) from error
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


def check_report(run: RunDir, absent: Absent) -> None:
    """Draws the report again, as of the run's end and as of now, and compares: whoever forges it can forge its digest.

    Another version of a2rl may have drawn another page from the same run. Then only the figures can be compared.
    """
    manifest = read_manifest(run)
    if manifest is None:
        raise NotCheckedError(NOT_CLOSED)
    if not run.report.exists():
        draws = (
            f": `a2rl report {run.id}` draws it" if run.ledger.events(BaselineKnown) else ", as there is no baseline"
        )
        raise NotCheckedError(f"there is no page{draws}")
    folder, entries = run.report.parent, run.ledger.entries()
    shown = {path: read_text(path) for path in sorted(folder.iterdir()) if path.is_file()}
    changed = [path for path in shown if not _is_listed(run, path, manifest)]
    end = max(place for place, entry in enumerate(entries) if isinstance(entry.event, RunClosed))

    def is_shown(drawn: dict[str, str]) -> bool:
        return all(text == scrub(drawn.get(path.name, "")) for path, text in shown.items())

    try:
        if (run.code / ".git").is_dir():
            git_program()  # raises: without git, the page has no changes of the code
        at_end = report_files(run, settings_of(run), entries[:end])
        if is_shown(at_end) or is_shown(report_files(run, settings_of(run), entries)):
            return
    except Exception as error:  # what it is drawn from may be forged, and every way to fail says so
        if changed:
            raise IntegrityError(f"{changed[0]} is another file, and it cannot be drawn again: {error}") from error
        raise NotCheckedError(f"the page cannot be drawn here: {error}") from error
    newer = [name for name in MAY_CHANGE if not _is_listed(run, run.root / name, manifest)]
    compared = ""
    if folder / DATA in shown:
        may_differ = ("validity", "gain") if VALIDITY in newer else ()
        there = json.loads(shown[folder / DATA])
        left_out = _check_figures(there, json.loads(scrub(at_end[DATA])), may_differ, bool(absent.files))
        compared = f"; the figures in {DATA} are those of the run (not compared: {left_out})"
    made_by = run.spec.git_commit[:12] or run.spec.versions.get("a2rl")
    lawful = [f"without {name}" for name in sorted(absent.files)] + [f"with a newer {name}" for name in newer]
    is_this_version = bool(run.spec.git_commit) or run.spec.versions.get("a2rl") == __version__
    if run.spec.git_commit != commit_here() or not is_this_version:
        lawful.append(f"by this version instead of a2rl {made_by}")
    require(bool(lawful) and not changed, f"{folder} is not that of this run: `a2rl report {run.id}` draws it again")
    raise NotCheckedError(f"drawn {lawful[0]}, the page differs{compared}")


def _is_listed(run: RunDir, path: Path, manifest: Manifest) -> bool:
    """Whether a file is as the manifest has it."""
    listed = manifest.files.get(str(path.relative_to(run.root)))
    return listed == (file_digest(path) if path.exists() else None)


@cache
def commit_here() -> str:
    """Returns the commit of the code that runs; empty if there is none, and a text that no run has if files changed."""
    commit = git_commit(Path(__file__).parents[3])
    return "none" if commit.endswith(CHANGED) else commit


def _check_figures(claimed: Any, found: Any, may_differ: Collection[str], may_lack: bool) -> str:
    """Compares the figures of two reports, which every version computes in the same way, without the texts around them.

    Args:
        may_differ: Parts that are not compared.
        may_lack: Whether files are not here, so that what one of the two does not know is not compared.

    Returns:
        What was not compared.
    """
    differences = [each for each in _differences(claimed, found, "") if each[0] not in may_differ]
    wrong = sorted(place for place, values in differences if values and not (may_lack and None in values))
    require(not wrong, f"{DATA} has another {_named(wrong)} than the run")
    return _named(["texts", "comparable", *may_differ, *sorted(place for place, _ in differences)])


def _differences(claimed: Any, found: Any, place: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields where two reports differ, and what they have there; nothing if only one of them has something."""
    if isinstance(claimed, dict) and isinstance(found, dict):
        for key in (claimed.keys() | found.keys()) - NOT_COMPARED:
            inner = f"{place}.{key}" if place else key
            if key in claimed and key in found:
                yield from _differences(claimed[key], found[key], inner)
            else:
                yield inner, ()
    elif isinstance(claimed, list) and isinstance(found, list) and len(claimed) == len(found):
        for number, each in enumerate(claimed):
            yield from _differences(each, found[number], f"{place}.{number}")
    elif not _follows(claimed, found):
        yield place, (claimed, found)


def check_items(run: RunDir) -> None:
    """Recomputes each score from its items, which must be exactly those of the split."""
    for path, split, claimed, digest in _grade_files(run):
        require(file_digest(path) == digest, f"{path} was changed after grading")
        hidden = hidden_of(run)
        items = read_model(path, GradeResult).items
        require(
            [item.id for item in items] == ids_of_run(run.spec, hidden, split),
            f"{path} does not have the items of the {split} split",
        )
        require_score(claimed, items, run, f"{path}: the items")
    _check_gains(run)


def _check_gains(run: RunDir) -> None:
    """Checks what each submission is said to have gained on the items that agents are told of."""
    known = run.ledger.events(BaselineKnown)
    baseline = known[-1].public.score if known else None
    for event in run.ledger.events(Graded):
        score = event.result.score
        gain = None if score is None or baseline is None else score - baseline
        require(same(event.improvement, gain), f"a submission is said to gain {event.improvement} points, not {gain}")


def check_baseline(run: RunDir) -> None:
    """Recomputes the base model's scores, and compares its items with the stored baseline of the same key."""
    record, known = run.read("baseline", BaselineRecord), run.ledger.events(BaselineKnown)
    if record is None or not known:
        return
    spec, hidden, path = run.spec, hidden_of(run), run.baseline_items
    require(record.key == known[0].key, "the record's baseline has another key than the ledger's")
    require(known[0].items_digest == file_digest(path), f"{path} was changed after grading")
    items = read_model(path, GradeResult).items
    require(
        [item.id for item in items] == ids_of_run(spec, hidden, "all"),
        f"{path} does not have the items of the eval set",
    )
    claims: list[tuple[Split, TaskScore | None]] = [
        (spec.public_split, known[0].public), ("private", known[0].private),
        ("all", record.total), ("public", record.public), ("private", record.private),
    ]  # fmt: skip
    for split, claimed in claims:
        if claimed is not None:
            chosen = set(ids_of_run(spec, hidden, split))
            require_score(claimed, [item for item in items if item.id in chosen], run, f"{path}: the {split} items")
    _check_stored(run, record.key, items)


def _check_stored(run: RunDir, key: str, items: Sequence[ItemResult]) -> None:
    """Compares the items with the baseline that is stored under this key, if there is one in this checkout."""
    for path in settings_of(run).baselines.glob("**/key.json"):
        if read_model(path, BaselineKey).key == key:
            rows = read_jsonl(path.parent / "items.jsonl")
            stored = {str(row["id"]): (row["verdict"], row["value"]) for row in rows}
            for item in items:
                require(
                    stored.get(item.id) == (item.verdict, item.value),
                    f"{run.baseline_items}: item {item.id} is not that of the stored baseline in {path.parent}",
                )


def _grade_files(run: RunDir) -> Iterator[tuple[Path, Split, TaskScore, str]]:
    for event in run.ledger.events(Graded):
        require(bool(event.items_digest) or event.result.score is None, "the ledger has a score without its items")
        if event.items_digest:
            split = run.spec.public_split
            yield run.items(event.weights_digest, split), split, event.result, event.items_digest
    for final in run.ledger.events(PrivateGraded):
        yield run.items(final.weights_digest, "private"), "private", final.result, final.items_digest
