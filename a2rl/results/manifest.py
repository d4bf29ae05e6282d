"""The manifest of a run: the digests of its files when it ended, in `manifest.json`, whose digest the ledger holds.

Weights, the ledger itself, the inputs, the agent's workspace and its code are left out: weights are in the ledger by
their own digest, and the code by the last commit of its history. So no name here was chosen by an agent.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from a2rl.core.errors import IntegrityError
from a2rl.core.files import StrictModel, file_digest, read_model, write_model
from a2rl.recording.code_history import commits
from a2rl.run.directory import ASIDE_LOG, RunDir, last_closing
from a2rl.run.events import RunClosed
from a2rl.run.inputs import OF_OTHERS
from a2rl.run.records import GradeRecord

FILE = "manifest.json"
CODE = "code"
NOT_LISTED = frozenset({"workspace", "given", "names", CODE, ".replaced"})
"""Folders that belong to the agent, are copies of inputs, which the ledger has by their digests, have a history, or are
states of the run that did not count."""
CHANGING = frozenset({
    FILE, "signatures.jsonl", "published.jsonl", "ledger.jsonl", "owner.lock", "clock.json", "stored.json",
    "summary.json", "logs/mlflow-behind.txt", "logs/anchor-behind.txt", "logs/publishing-behind.txt",
    f"logs/{ASIDE_LOG}", ".mirrored-by", OF_OTHERS,
})  # fmt: skip
"""Files that may change after the end. The anchor's are checked by themselves."""
DATABASES = ("ledger.db", "account.db", "labels-account.db")
"""The beginnings of their names, and of what SQLite puts beside them: a run is labelled anew after its end."""
WEIGHTS = ".safetensors"
VALIDITY, LABELS, REPORT = "records/validity.json", "records/labels.json", "report/"
MAY_CHANGE = (VALIDITY, LABELS)
LAWFUL = (*MAY_CHANGE, REPORT)
"""Files that may lawfully differ later: an audit can lower the validity, labels follow from the rest by rules that may
improve, and `a2rl report` draws the page anew. Those of the first and the last kind are checked by themselves. A record
may not be missing."""


class Manifest(StrictModel):
    """The files of a run."""

    schema_version: Literal[1] = 1
    files: dict[str, str]
    """SHA-256 (hex) by path, relative to the run directory."""
    code: str
    """The last commit of the agent's code; empty if none was recorded."""


def close_run(run: RunDir) -> None:
    """Writes the manifest of a finished run and closes its ledger; a run with a lasting result is closed once.

    A run that failed in a stage may be resumed, and is then closed again.

    Raises:
        InfrastructureError: The disk or git failed.
        IntegrityError: It was closed again after it had ended for good.
    """
    graded = run.read("grade", GradeRecord)
    if graded is None or last_closing(run) is not None:
        return
    write_model(run.root / FILE, manifest_of(run))
    closed = RunClosed(
        verdict=graded.verdict,
        failed_stage=graded.failed_stage,
        manifest_digest=file_digest(run.root / FILE),
    )
    run.ledger.append(closed)


def manifest_of(run: RunDir) -> Manifest:
    """Reads all files of a run and returns their manifest."""
    files = {str(path): file_digest(run.root / path) for path in files_of(run)}
    history = commits(run.code)
    return Manifest(files=files, code=history[0] if history else "")


def files_of(run: RunDir) -> list[PurePosixPath]:
    """Returns the files that the manifest lists, sorted, relative to the run directory. Links are left out."""
    return sorted(_walk(run.root))


def _walk(root: Path) -> Iterator[PurePosixPath]:
    for folder, names, files in os.walk(root):
        place = PurePosixPath(Path(folder).relative_to(root).as_posix())
        names[:] = [name for name in names if _is_walked(place / name)]
        for name in files:
            path = place / name
            if _is_listed(path) and not (root / path).is_symlink() and (root / path).is_file():
                yield path


def _is_walked(folder: PurePosixPath) -> bool:
    if len(folder.parts) == 1:
        return folder.name not in NOT_LISTED
    return not folder.name.startswith(".received-")


def _is_listed(path: PurePosixPath) -> bool:
    name = path.name
    is_weights = path.parts[0] == "submissions" and name.endswith(WEIGHTS)
    is_lock = name.endswith((".lock", ".tmp", ".progress"))
    return not (is_weights or is_lock or str(path) in CHANGING or name.startswith(DATABASES))


def read_manifest(run: RunDir) -> Manifest | None:
    """Returns the manifest that the ledger vouches for; None if the run is not closed.

    Raises:
        IntegrityError: The manifest is missing or is another, or a run that has ended was never closed.
    """
    closed = last_closing(run)
    if closed is None:
        if not run.ledger.events(RunClosed) and run.record_path("report").exists():
            raise IntegrityError("the run has a report, but its ledger does not end with it: entries were cut off")
        return None
    path = run.root / FILE
    if not path.exists() or file_digest(path) != closed.manifest_digest:
        raise IntegrityError(f"{path} is not the list of files with which the run ended")
    return read_model(path, Manifest)


def changed_files(run: RunDir, manifest: Manifest, below: str = "", absent: frozenset[str] = frozenset()) -> list[str]:
    """Returns, in words, the files that are not as the manifest has them; files that may lawfully differ are not read.

    Args:
        below: Only files whose paths begin with this.
    """
    present = {str(path) for path in files_of(run) if str(path).startswith(below)}
    named = {path for path in manifest.files if path.startswith(below)} - absent
    kept = [path for path in sorted(present) if not path.startswith(LAWFUL)]
    problems = [f"{path} is missing" for path in sorted(named - present) if not path.startswith(REPORT)]
    problems += [f"{path} was added after the run had ended" for path in kept if path not in named]
    problems += [
        f"{path} was changed after the run had ended"
        for path in kept
        if path in named and file_digest(run.root / path) != manifest.files[path]
    ]
    return problems
