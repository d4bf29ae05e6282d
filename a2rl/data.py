"""Task data on disk: `data/<variant>/<task>/visible` for the agent, `hidden` for the grader, made once per source."""

import json
import shutil
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from a2rl.catalog import load_preparer, load_task
from a2rl.errors import A2rlError, UsageError
from a2rl.files import cannot, folder_digest, replace_folder
from a2rl.locks import held
from a2rl.settings import Settings
from a2rl.task import Variant

SOURCE_NOTE = "source.txt"
TIMEOUT_S = 4 * 3600.0
"""For making data: the largest is downloaded and indexed in far less."""
ABOUT = "about.json"
"""Facts on the data, name by name, that a task may leave in `hidden/` to be shown beside scores."""

INCOMPLETE = "incomplete.txt"
"""Why no run can start from this data, though checkpoints can be graded with it; a task may leave it in `hidden/`."""


def prepare_data(task_id: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    """Makes a task's data, replacing what is there only once the new data is whole; returns its folder.

    Raises:
        UsageError: the local mirror is not there or lacks a file.
        InfrastructureError: the hub cannot be reached, or others use the data for too long.
    """
    if source is not None and not source.is_dir():
        raise UsageError(f"--source {source} is not a folder: give the folder with the task's data files")
    load_task(task_id, settings.root)
    with _making(settings.data(task_id, variant)):
        return _make(task_id, variant, source, settings)


def _make(task_id: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    target = settings.data(task_id, variant)
    _sweep(target)
    making = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        visible, hidden = making / "visible", making / "hidden"
        visible.mkdir(parents=True)
        hidden.mkdir()
        load_preparer(task_id).prepare(variant, source, visible, hidden)
        (hidden / SOURCE_NOTE).write_text(f"{_note(variant, source)}\n", encoding="utf-8")
        if not (_is_whole(target) and folder_digest(making) == folder_digest(target)):
            replace_folder(making, target)  # data that is the same stays: runs may be reading it
    except A2rlError:
        raise
    except OSError as error:
        raise cannot(f"write the data of {task_id} ({variant})", error) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return target


def _sweep(target: Path) -> None:
    """Removes what makers that were killed left; the lock is ours."""
    hexadecimal = "[0-9a-f]" * 32
    for left in target.parent.glob(f".{target.name}-{hexadecimal}*"):
        shutil.rmtree(left, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    return (folder / "visible").is_dir() and (folder / "hidden").is_dir()


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _making(folder: Path) -> AbstractContextManager[None]:
    """Held while a task's data is made: of runs that start side by side one makes it, and the others wait for it."""
    return held(_lock(folder), f"another process makes or reads {folder}", TIMEOUT_S)


def reading(folder: Path) -> AbstractContextManager[None]:
    """Held while a task's data is read file by file: nobody replaces it meanwhile.

    Raises:
        Interrupted: the user stopped the pipeline.
        InfrastructureError: it is being made, and not done in time.
    """
    return held(_lock(folder), f"another process makes {folder}", TIMEOUT_S, shared=True)


def ensure_data(task_id: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    """The folder of a task's data; made first if it is not there, or if it came from another source than asked for.

    Raises:
        UsageError: it is there in part only.
    """
    folder = settings.data(task_id, variant)
    with reading(folder):
        if _is_asked_for(folder, variant, source):
            return folder
    with _making(folder):
        if _is_asked_for(folder, variant, source):  # made by another meanwhile
            return folder
        if (folder / "visible").is_dir() != (folder / "hidden").is_dir():
            missing = "visible" if (folder / "hidden").is_dir() else "hidden"
            raise UsageError(
                f"the {missing} data of {task_id} ({variant}) is missing from {folder}: "
                f"`a2rl prepare --task {task_id} --variant {variant}` makes it anew"
            )
        return _make(task_id, variant, source, settings)


def _is_asked_for(folder: Path, variant: Variant, source: Path | None) -> bool:
    return _is_whole(folder) and (source is None or _made_from(folder) == _note(variant, source))


def about(folder: Path) -> dict[str, str]:
    """What the task says about its data, such as which games these are; empty where it says nothing."""
    note = folder / "hidden" / ABOUT
    return dict(json.loads(note.read_text(encoding="utf-8"))) if note.exists() else {}


def require_complete(folder: Path) -> None:
    """Raises UsageError: an agent would lack something."""
    note = folder / "hidden" / INCOMPLETE
    if note.exists():
        raise UsageError(f"no run can start from the data in {folder}: {note.read_text(encoding='utf-8')}")


def hidden_digest(folder: Path) -> str:
    """SHA-256 (hex) of the eval data, wherever it came from."""
    return folder_digest(folder / "hidden", but=(SOURCE_NOTE,))


def _note(variant: Variant, source: Path | None) -> str:
    if variant == "mini":
        return "generated"
    return str(source.resolve()) if source else "hub"


def _made_from(folder: Path) -> str:
    note = folder / "hidden" / SOURCE_NOTE
    return note.read_text(encoding="utf-8").strip() if note.exists() else ""
