"""Eval sets of mini variants that were drawn from a secret seed: `data/drawn/<name>/<task>/hidden`.

They can be made again from the seed at any time, byte for byte, so nothing is lost if they are removed.
"""

import shutil
import tempfile
from pathlib import Path

from a2rl.core.errors import A2rlError
from a2rl.core.files import machine_failure, replace_folder
from a2rl.task_api.catalog import load_preparer
from a2rl.task_api.contract import DrawingPreparer, Variant
from a2rl.task_api.data import SOURCE_NOTE, hidden_digest, making, reading

NOTE = "drawn from a secret seed\n"


def can_draw(task_id: str, variant: Variant) -> bool:
    """Returns whether the items of a variant are drawn; otherwise only its halves are."""
    return variant == "mini" and isinstance(load_preparer(task_id), DrawingPreparer)


def ensure_drawn(task_id: str, seed: str, folder: Path) -> Path:
    """Returns a folder with the `hidden/` that a seed gives; it is made first if it is missing.

    If several runs start at once, one makes it and the others wait.

    Args:
        task_id: A task for which `can_draw` is true.
        seed: The secret.
        folder: Where it belongs: `Settings.drawn`.

    Raises:
        InfrastructureError: The disk failed, or another process takes too long.
    """
    with reading(folder):
        if (folder / "hidden").is_dir():
            return folder
    with making(folder):
        if not (folder / "hidden").is_dir():
            _make(task_id, seed, folder)
    return folder


def drawn_digest(task_id: str, seed: str) -> str:
    """Makes the eval set of a seed in a temporary folder and returns its digest, as `hidden_digest` does."""
    with tempfile.TemporaryDirectory() as name:
        _write(task_id, seed, Path(name) / "drawn")
        return hidden_digest(Path(name) / "drawn")


def _make(task_id: str, seed: str, folder: Path) -> None:
    making_in = folder.with_name(f".{folder.name}-new")  # whoever made it before us and was killed held the same lock
    try:
        shutil.rmtree(making_in, ignore_errors=True)
        _write(task_id, seed, making_in)
        replace_folder(making_in, folder)
    except A2rlError:
        raise
    except OSError as error:
        raise machine_failure(f"write the eval set of {task_id}", error) from error
    finally:
        shutil.rmtree(making_in, ignore_errors=True)


def _write(task_id: str, seed: str, folder: Path) -> None:
    preparer, hidden = load_preparer(task_id), folder / "hidden"
    assert isinstance(preparer, DrawingPreparer)
    hidden.mkdir(parents=True)
    hidden.chmod(0o700)
    preparer.draw(seed, hidden)
    (hidden / SOURCE_NOTE).write_text(NOTE, encoding="utf-8")
