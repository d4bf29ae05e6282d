"""Stage `data` (DVC): a task's data, what the agent sees and what only the grader sees apart."""

from pathlib import Path

from a2rl.data import prepare_data
from a2rl.settings import Settings
from a2rl.task import Variant


def data(task: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    """Makes the data anew and returns its folder."""
    return prepare_data(task, variant, source, settings)
