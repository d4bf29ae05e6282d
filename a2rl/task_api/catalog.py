"""Finds tasks by listing the folders in tasks/. There is no registry to edit when a task is added.

task = load_task("gsm8k")          # tasks/gsm8k/task.py: TASK
"""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import cast

from a2rl.core.errors import TaskDefinitionError, UsageError, unknown_name
from a2rl.task_api.contract import Grader, Preparer, ServicesModule, Task, TwinsModule


def task_ids(root: Path) -> list[str]:
    """Returns the names of the folders in tasks/ that contain a task.py."""
    return sorted(path.parent.name for path in (root / "tasks").glob("*/task.py"))


def load_task(task_id: str, root: Path) -> Task:
    """Returns the TASK that a task's folder defines.

    Raises:
        UsageError: There is no such task.
        TaskDefinitionError: The task's task.py has no valid TASK.
    """
    known = task_ids(root)
    if task_id not in known:
        raise unknown_name("task", task_id, known)
    task = getattr(_task_module(task_id, "task"), "TASK", None)
    if not isinstance(task, Task) or task.id != task_id:
        raise TaskDefinitionError(f"tasks/{task_id}/task.py must define TASK = Task(id={task_id!r}, ...)")
    return task


def load_grader(task_id: str) -> Grader:
    """Returns the module with a task's grading functions."""
    return cast(Grader, _task_module(task_id, "grade"))


def load_preparer(task_id: str) -> Preparer:
    """Returns the module with a task's data functions."""
    return cast(Preparer, _task_module(task_id, "prepare"))


def load_services(task_id: str) -> ServicesModule:
    """Returns the module with the services that a task offers to agents."""
    return cast(ServicesModule, _task_module(task_id, "services"))


def load_twins(task_id: str) -> TwinsModule | None:
    """Returns the module that makes twins of a task's published items; None if it has none."""
    name = f"tasks.{task_id}.twins"
    return cast(TwinsModule, importlib.import_module(name)) if importlib.util.find_spec(name) else None


def _task_module(task_id: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(f"tasks.{task_id}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"tasks.{task_id}":
            raise
        raise UsageError(f"this checkout has no task {task_id}") from error  # a run of another checkout has it
