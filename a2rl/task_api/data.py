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

import a2rl
from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.files import digest_of, folder_digest, machine_failure, replace_folder
from a2rl.core.locks import file_lock
from a2rl.core.settings import Settings
from a2rl.task_api.catalog import load_preparer, load_task, task_folder
from a2rl.task_api.contract import DrawingPreparer, Variant, code_of_task

SOURCE_NOTE = "source.txt"
GENERATED, HUB = "generated", "hub"
SHARED_CODE = ("core/model_text.py", "handout/*.py", "sampling/decoder/*.py")
"""What tasks hand to agents, besides their own files."""
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
    folder = settings.data(task_id, variant)
    if _is_asked_for(folder, task_id, variant, source, settings):
        return
    source = source or _source_of(folder)
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
        note = f"{_origin(variant, source)}\n{_code_digest(task_id, settings)}\n"
        (hidden / SOURCE_NOTE).write_text(note, encoding="utf-8")
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

    It is also prepared again if other code has prepared it, because agents are handed parts of that code; but not if it
    came from the hub, which may be out of reach.

    Raises:
        UsageError: Only a part of the data exists, or the folder to prepare it from does not.
    """
    folder = settings.data(task_id, variant)
    with reading(folder):
        if _is_asked_for(folder, task_id, variant, source, settings):
            return folder
    source = source or _source_of(folder)
    require_folder(source)
    with making(folder):
        if _is_asked_for(folder, task_id, variant, source, settings):  # another process has prepared it meanwhile
            return folder
        if (folder / "visible").is_dir() != (folder / "hidden").is_dir():
            missing = "visible" if (folder / "hidden").is_dir() else "hidden"
            raise UsageError(
                f"the {missing} data of {task_id} ({variant}) is missing from {folder}: "
                f"run `a2rl prepare --task {task_id} --variant {variant}` to prepare it again"
            )
        return _make(task_id, variant, source, settings)


def _is_asked_for(folder: Path, task_id: str, variant: Variant, source: Path | None, settings: Settings) -> bool:
    if not _is_whole(folder):
        return False
    origin, code = _note(folder)
    if source is not None and origin != _origin(variant, source):
        return False
    can_be_made_again = origin == GENERATED or _source_of(folder) is not None
    return not can_be_made_again or code == _code_digest(task_id, settings)


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


def _origin(variant: Variant, source: Path | None) -> str:
    if variant == "mini":
        return GENERATED
    return str(source.resolve()) if source else HUB


def _note(folder: Path) -> tuple[str, str]:
    """What data was made from, and the digest of the code that made it; empty if it is not known."""
    note = folder / "hidden" / SOURCE_NOTE
    origin, _, code = note.read_text(encoding="utf-8").strip().partition("\n") if note.exists() else ("", "", "")
    return origin, code


def _source_of(folder: Path) -> Path | None:
    """The folder that data was made from, if it is still there."""
    origin, _ = _note(folder)
    return Path(origin) if origin not in ("", GENERATED, HUB) and Path(origin).is_dir() else None


def _code_digest(task_id: str, settings: Settings) -> str:
    """Covers the files that dvc.yaml names as what a task's data depends on."""
    shared = folder_digest(Path(a2rl.__file__).parent, SHARED_CODE)
    return digest_of([shared, folder_digest(task_folder(task_id, settings.root), ("**/*.py",))])


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
