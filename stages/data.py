"""Stage `data` (DVC): prepares a task's data; what the agent sees and what only the grader sees are kept apart."""

from pathlib import Path

from a2rl.core.settings import Settings
from a2rl.task_api.contract import Variant
from a2rl.task_api.data import prepare_data


def data(task: str, variant: Variant, source: Path | None, settings: Settings) -> Path:
    """Prepares the data again and returns its folder."""
    return prepare_data(task, variant, source, settings)
