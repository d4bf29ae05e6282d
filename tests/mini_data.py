"""The public edition of a task's mini data, made in a folder of a test, because a fresh checkout has none yet."""

from pathlib import Path

from a2rl.task_api.catalog import load_preparer


def prepare_mini(task_id: str, folder: Path) -> tuple[Path, Path]:
    """Makes the mini data of a task; returns the visible and the hidden folder."""
    visible, hidden = folder / "visible", folder / "hidden"
    visible.mkdir(parents=True)
    hidden.mkdir()
    load_preparer(task_id).prepare("mini", None, visible, hidden)
    return visible, hidden
