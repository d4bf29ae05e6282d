"""Finds tasks and agents by looking into their folders; adding one edits no registry.

task = load_task("gsm8k")          # tasks/gsm8k/task.py: TASK
agent = find_agent(root, "noop")   # agents/noop/agent.yaml
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import cast

import yaml
from pydantic import ValidationError

from a2rl.agent import Agent
from a2rl.errors import TaskDefinitionError, UsageError, unknown
from a2rl.files import explain
from a2rl.task import Grader, Preparer, Task


def task_ids(root: Path) -> list[str]:
    """The folders below tasks/ that hold a task.py."""
    return sorted(path.parent.name for path in (root / "tasks").glob("*/task.py"))


def load_task(task_id: str, root: Path) -> Task:
    """The TASK of a task folder.

    Raises:
        UsageError: there is no such folder.
        TaskDefinitionError: its task.py has no valid TASK.
    """
    known = task_ids(root)
    if task_id not in known:
        raise unknown("task", task_id, known)
    task = getattr(_task_module(task_id, "task"), "TASK", None)
    if not isinstance(task, Task) or task.id != task_id:
        raise TaskDefinitionError(f"tasks/{task_id}/task.py must define TASK = Task(id={task_id!r}, ...)")
    return task


def load_grader(task_id: str) -> Grader:
    """The grading functions of a task."""
    return cast(Grader, _task_module(task_id, "grade"))


def load_preparer(task_id: str) -> Preparer:
    """The data functions of a task."""
    return cast(Preparer, _task_module(task_id, "prepare"))


def _task_module(task_id: str, name: str) -> ModuleType:
    return importlib.import_module(f"tasks.{task_id}.{name}")


def agent_ids(root: Path) -> list[str]:
    """The folders below agents/ that hold an agent.yaml."""
    return sorted(path.parent.name for path in (root / "agents").glob("*/agent.yaml"))


def find_agent(name: str, root: Path) -> Agent:
    """An agent by id, or by the path of a start script (anything that bash runs, as the reference's start.sh).

    Raises:
        UsageError: there is no such agent and no such script.
        TaskDefinitionError: its agent.yaml is not valid.
    """
    if "/" in name or name.endswith(".sh"):
        return _script_agent(Path(name))
    known = agent_ids(root)
    if name not in known:
        raise unknown("agent", name, known)
    folder = root / "agents" / name
    try:
        settings = yaml.safe_load((folder / "agent.yaml").read_text(encoding="utf-8"))
        return Agent(**{"id": name, **settings, "folder": folder})
    except ValidationError as error:
        raise TaskDefinitionError(f"agents/{name}/agent.yaml: {explain(error)}") from error
    except (yaml.YAMLError, TypeError) as error:
        raise TaskDefinitionError(f"agents/{name}/agent.yaml: {' '.join(str(error).split())}") from error


def _script_agent(script: Path) -> Agent:
    if not script.is_file():
        raise UsageError(
            f"no agent script {script}: --agent takes an id (see `a2rl agents`) or the path of a start script"
        )
    script = script.resolve()
    return Agent(
        id=script.parent.name or script.stem, title=str(script), start=("bash", str(script)), folder=script.parent
    )
