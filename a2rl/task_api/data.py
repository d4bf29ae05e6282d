"""Task data on disk, prepared once for each source: `data/<variant>/<task>/visible` for the agent, `hidden` for the
grader. Eval sets of mini variants that are drawn from a secret seed are in `data/drawn/<name>/<task>/hidden`; they can
be made again from the seed at any time, byte for byte, so nothing is lost if they are removed.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.files import folder_digest, machine_failure, replace_folder
from a2rl.core.locks import file_lock
from a2rl.core.settings import Settings
from a2rl.task_api.catalog import load_preparer, load_task
from a2rl.task_api.contract import DrawingPreparer, Variant, code_of_task

SOURCE_NOTE = "source.txt"
TIMEOUT_S = 4 * 3600.0
"""How long to wait for another process that uses the data. Downloading and indexing the largest data set takes far less
than this."""
ABOUT = "about.json"
"""A JSON file with facts about the data, by name. A task may write it into `hidden/`; it is shown next to scores."""

INCOMPLETE = "incomplete.txt"
"""A file that says why no run can start from this data, although checkpoints can be graded with it. A task may write it
into `hidden/`."""


def prepare_data(task_id: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    """Prepares a task's data and returns its folder; existing data is replaced only when the new data is complete.

    Raises:
        UsageError: The local mirror does not exist or lacks a file.
        InfrastructureError: The hub cannot be reached, or other processes use the data for too long.
    """
    require_folder(source)
    load_task(task_id, settings.root)
    with making(settings.data(task_id, variant)):
        return _make(task_id, variant, source, settings)


def require_folder(source: Path | None) -> None:
    """Checks that the folder with a data set's files exists; None stands for the network and always passes.

    Raises:
        UsageError: It does not exist.
    """
    if source is not None and not source.is_dir():
        raise UsageError(f"--source {source} is not a folder: give the folder with the task's data files")


def require_source(task_id: str, variant: Variant, source: Path | None, settings: Settings) -> None:
    """Checks that this folder exists if the task needs it, unless the data has been prepared from it already.

    Raises:
        UsageError: It is needed and does not exist, or is not given.
    """
    if _is_asked_for(settings.data(task_id, variant), variant, source):
        return
    require_folder(source)
    if source is None and (needs := load_task(task_id, settings.root).needs_source):
        raise UsageError(f"{task_id} needs --source FOLDER with local copies: {needs}")


def _make(task_id: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    target = settings.data(task_id, variant)
    with _made_beside(target, f"the data of {task_id} ({variant})") as folder:
        visible, hidden = folder / "visible", folder / "hidden"
        visible.mkdir(parents=True)
        hidden.mkdir()
        with code_of_task(task_id):
            load_preparer(task_id).prepare(variant, source, visible, hidden)
        (hidden / SOURCE_NOTE).write_text(f"{_note(variant, source)}\n", encoding="utf-8")
        if not (_is_whole(target) and folder_digest(folder) == folder_digest(target)):
            replace_folder(folder, target)  # equal data is not replaced, because runs may be reading it
    return target


@contextmanager
def _made_beside(target: Path, what: str) -> Iterator[Path]:
    """Yields the path of a folder that becomes the target or is removed; the caller holds the lock.

    Raises:
        InfrastructureError: The disk failed.
    """
    folder = target.with_name(f".{target.name}-new")  # whoever made it before us and was killed held the same lock
    try:
        shutil.rmtree(folder, ignore_errors=True)
        yield folder
    except A2rlError:
        raise
    except OSError as error:
        raise machine_failure(f"write {what}", error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    return (folder / "visible").is_dir() and (folder / "hidden").is_dir()


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def making(folder: Path) -> AbstractContextManager[None]:
    """Locks a folder of data for writing: if several runs start at once, one prepares it and the others wait."""
    return file_lock(_lock(folder), f"another process makes or reads {folder}", TIMEOUT_S)


def reading(folder: Path) -> AbstractContextManager[None]:
    """Locks a folder of data for reading, so that no process replaces it meanwhile.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: Another process did not finish preparing it in time.
    """
    return file_lock(_lock(folder), f"another process makes {folder}", TIMEOUT_S, shared=True)


def ensure_data(task_id: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    """Returns the folder of a task's data, which is prepared first if it is missing or came from another source.

    Raises:
        UsageError: Only a part of the data exists, or the folder to prepare it from does not.
    """
    folder = settings.data(task_id, variant)
    with reading(folder):
        if _is_asked_for(folder, variant, source):
            return folder
    require_folder(source)
    with making(folder):
        if _is_asked_for(folder, variant, source):  # another process has prepared it meanwhile
            return folder
        if (folder / "visible").is_dir() != (folder / "hidden").is_dir():
            missing = "visible" if (folder / "hidden").is_dir() else "hidden"
            raise UsageError(
                f"the {missing} data of {task_id} ({variant}) is missing from {folder}: "
                f"run `a2rl prepare --task {task_id} --variant {variant}` to prepare it again"
            )
        return _make(task_id, variant, source, settings)


def _is_asked_for(folder: Path, variant: Variant, source: Path | None) -> bool:
    return _is_whole(folder) and (source is None or _made_from(folder) == _note(variant, source))


def about(folder: Path) -> dict[str, str]:
    """Reads the task's remarks on its data, such as which games it contains; empty if there are none."""
    note = folder / "hidden" / ABOUT
    return dict(json.loads(note.read_text(encoding="utf-8"))) if note.exists() else {}


def require_complete(folder: Path) -> None:
    """Checks that a run can start from the data.

    Raises:
        UsageError: An agent would lack something.
    """
    note = folder / "hidden" / INCOMPLETE
    if note.exists():
        raise UsageError(f"no run can start from the data in {folder}: {note.read_text(encoding='utf-8')}")


def hidden_digest(folder: Path) -> str:
    """Returns the SHA-256 digest (hex) of the eval data. It does not depend on the source of the data."""
    return folder_digest(folder / "hidden", but=(SOURCE_NOTE,))


def _note(variant: Variant, source: Path | None) -> str:
    if variant == "mini":
        return "generated"
    return str(source.resolve()) if source else "hub"


def _made_from(folder: Path) -> str:
    note = folder / "hidden" / SOURCE_NOTE
    return note.read_text(encoding="utf-8").strip() if note.exists() else ""


def can_draw(task_id: str, variant: Variant) -> bool:
    """Returns whether the items of a variant are drawn; otherwise only its halves are."""
    return variant == "mini" and isinstance(load_preparer(task_id), DrawingPreparer)


def ensure_drawn(task_id: str, seed: str, folder: Path) -> Path:
    """Returns a folder with the `hidden/` that a seed gives; it is made first if it is missing.

    If several runs start at once, one makes it and the others wait.

    Args:
        task_id: A task for which `can_draw` is true.
        folder: Where it belongs: `Settings.drawn`.

    Raises:
        InfrastructureError: The disk failed, or another process takes too long.
    """
    with reading(folder):
        if (folder / "hidden").is_dir():
            return folder
    with making(folder):
        if not (folder / "hidden").is_dir():
            with _made_beside(folder, f"the eval set of {task_id}") as new:
                _draw(task_id, seed, new)
                replace_folder(new, folder)
    return folder


def drawn_digest(task_id: str, seed: str) -> str:
    """Makes the eval set of a seed in a temporary folder and returns its digest, as `hidden_digest` does."""
    with tempfile.TemporaryDirectory() as name:
        _draw(task_id, seed, Path(name) / "drawn")
        return hidden_digest(Path(name) / "drawn")


def _draw(task_id: str, seed: str, folder: Path) -> None:
    preparer, hidden = load_preparer(task_id), folder / "hidden"
    assert isinstance(preparer, DrawingPreparer)
    hidden.mkdir(parents=True)
    hidden.chmod(0o700)
    with code_of_task(task_id):
        preparer.draw(seed, hidden)
    (hidden / SOURCE_NOTE).write_text("drawn from a secret seed\n", encoding="utf-8")
