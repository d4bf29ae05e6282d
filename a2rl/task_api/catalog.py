"""Finds tasks: the built-in ones are the folders in tasks/, and one of the user's own is a folder anywhere.

task = load_task("gsm8k", root)                       # tasks/gsm8k/task.py: TASK
task_id = find_task("../capitals", root)              # "capitals-3f2a91c4"
task = load_task(task_id, root)

The folder of a user's own task is copied into the checkout when it is named, and its id contains the digest of its
files. So a run goes on with the code that it began with, and a result says which code graded it.
"""

import importlib
import importlib.util
import re
import shutil
import tempfile
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import cast

from a2rl.core.errors import A2rlError, TaskDefinitionError, UsageError, unknown_name
from a2rl.core.files import expanded, folder_digest, machine_failure
from a2rl.task_api.contract import Grader, Preparer, ServicesModule, Task, TwinsModule, code_of_task

FILES = ("task.py", "prepare.py", "grade.py", "description.md")
"""What the folder of a task has."""
SKELETONS = Path(__file__).with_name("skeletons")
"""Whole small tasks, which `a2rl tasks new` copies: a question with one answer, and an environment."""
OWN = Path("data", "tasks")
"""The folder of the user's own tasks in a checkout; `tasks/__init__.py` makes them importable."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
PACKAGES = {"reasoning_gym": "a2rl.task_api.reasoning_gym", "inspect": "a2rl.task_api.inspect_tasks"}
"""What stands before the colon in the name of a task from a package of others, and the module that makes such tasks."""
DIGEST_CHARS = 8
LEFT_OUT = ("__pycache__", ".*")


def task_ids(root: Path) -> list[str]:
    """Returns the names of the folders in tasks/ that contain a task.py."""
    return sorted(path.parent.name for path in (root / "tasks").glob("*/task.py"))


def own_task_ids(root: Path) -> list[str]:
    """Returns the ids of the user's own tasks that were named in this checkout."""
    return sorted(path.parent.name for path in (root / OWN).glob("[a-z]*/task.py"))


def tasks_here(root: Path) -> dict[str, Task]:
    """Returns the tasks of this checkout by id: the built-in ones, then the user's own, the last named last.

    One of these that cannot be loaded any more, as after an update of a2rl, is left out.
    """
    found = {task_id: load_task(task_id, root) for task_id in task_ids(root)}
    for task_id in sorted(own_task_ids(root), key=lambda each: (root / OWN / each).stat().st_mtime_ns):
        with suppress(A2rlError):
            found[task_id] = load_task(task_id, root)
    return found


def find_task(name: str, root: Path) -> str:
    """Returns the id of a task, given its id, the folder of one of the user's own, or `PACKAGE:NAME` (`PACKAGES`).

    Raises:
        UsageError: There is no such task or folder, or the folder lacks a file.
        TaskDefinitionError: Its task.py has no valid TASK.
    """
    if is_of_package(name):
        return _from_package(name, root)
    if "/" not in name and (name in task_ids(root) or not Path(name).is_dir()):
        load_task(name, root)
        return name
    folder = expanded(name).resolve()
    if folder.parent in (root / "tasks", root / OWN):
        return find_task(folder.name, root)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; `a2rl tasks new NAME` makes a whole task")
    if missing := [file for file in FILES if not (folder / file).is_file()]:
        raise UsageError(f"{folder} is not a task: it has no {missing[0]}; `a2rl tasks new NAME` makes a whole one")
    check_name(folder.name, root)
    return _copied(folder, root)


def check_name(name: str, root: Path) -> None:
    """Checks that a task of one's own may have this name.

    Raises:
        UsageError: It may not.
    """
    if not NAME.fullmatch(name) or name in task_ids(root):
        raise UsageError(
            f"a task cannot be called {name!r}: a name has only lower-case letters, digits and _, and is not that of "
            "a built-in task"
        )


def is_of_package(name: str) -> bool:
    """Whether this is the name of a task from a package of others."""
    return name.partition(":")[0] in PACKAGES and ":" in name


@cache
def _from_package(name: str, root: Path) -> str:
    """Makes a task from a package of others, which takes a while, and returns the id."""
    from a2rl.task_api.packages import write_task  # only such tasks need it

    with tempfile.TemporaryDirectory() as making:
        return _copied(write_task(name, PACKAGES[name.partition(":")[0]], Path(making)), root)


def _copied(folder: Path, root: Path) -> str:
    """Copies the folder of a task, unless its copy is there, and returns the id."""
    making, is_new = root / OWN / f".{uuid.uuid4().hex}", False
    try:
        shutil.copytree(folder, making, ignore=shutil.ignore_patterns(*LEFT_OUT))
        task_id = f"{folder.name}-{folder_digest(making)[:DIGEST_CHARS]}"
        target = root / OWN / task_id
        target.parent.chmod(0o700)  # it may hold the eval set
        if is_new := not target.is_dir():
            making.rename(target)
        target.touch()
    except OSError as error:
        raise machine_failure(f"copy {folder}", error) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    importlib.invalidate_caches()
    try:
        load_task(task_id, root)
    except A2rlError:
        if is_new:
            shutil.rmtree(target)  # otherwise, no command could list the tasks
        raise
    return task_id


def task_folder(task_id: str, root: Path) -> Path:
    """Returns the folder of a task's code.

    Raises:
        UsageError: There is no such task.
    """
    if task_id in (known := task_ids(root)):
        return root / "tasks" / task_id
    if task_id in (own := own_task_ids(root)):
        return root / OWN / task_id
    if "-" in task_id:
        raise UsageError(
            f"this checkout has no task {task_id}: it is somebody's own; `a2rl tasks check FOLDER` adds the folder of "
            f"its code, whose digest must begin with {task_id.rpartition('-')[2]}"
        )
    raise unknown_name("task", task_id, [*known, *own])


def load_task(task_id: str, root: Path) -> Task:
    """Returns the TASK that a task's folder defines, with this id.

    Raises:
        UsageError: There is no such task.
        TaskDefinitionError: The task's task.py has no valid TASK.
    """
    task_folder(task_id, root)
    name = task_id.partition("-")[0]
    task = getattr(_task_module(task_id, "task"), "TASK", None)
    if not isinstance(task, Task) or task.id != name or not (task.mini or task.full):
        raise TaskDefinitionError(f"task.py of {task_id} must define TASK = Task(id={name!r}, ...) with mini or full")
    return task if task.id == task_id else task.model_copy(update={"id": task_id})


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
    with code_of_task(task_id):
        try:
            return importlib.import_module(f"tasks.{task_id}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"tasks.{task_id}":
                raise
            raise UsageError(f"this checkout has no task {task_id}") from error  # a run of another checkout has it
