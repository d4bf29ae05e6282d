"""The tasks: one folder each, found by its `task.py`."""

from pathlib import Path

# The user's own tasks: see a2rl/task_api/catalog.py.
__path__.append(str(Path(__file__).resolve().parents[1] / "data" / "tasks"))
