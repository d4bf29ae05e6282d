"""`a2rl init`: makes a project, the folder in which a2rl runs. A checkout is one, too."""

import re
import shutil
import uuid
from pathlib import Path
from typing import Annotated

import typer

import a2rl
from a2rl.core.errors import UsageError
from a2rl.core.files import machine_failure
from a2rl.core.settings import MADE_BY

SHIPPED = Path(a2rl.__file__).resolve().parent / "project"
"""What an installed package has of the application (setup.py); a checkout has it at its own root."""
ON_OUR_CODE = re.compile(r"^ +- a2rl/.*\n", re.MULTILINE)
"""The dependencies of DVC's stages on files of a2rl. A project has no such files: it stays with one version of a2rl."""


def init(
    folder: Annotated[Path, typer.Argument(help="The folder of the project; it must not exist yet.")],
) -> None:
    """Make a project: a folder with tasks, agents and settings, which are yours to change, and later with your runs.

    Example: `a2rl init my-project`
    """
    from a2rl.cli.console import out

    if not SHIPPED.is_dir():
        raise UsageError(f"this a2rl belongs to the checkout {SHIPPED.parents[1]}, which is a project: work there")
    make_project(SHIPPED, folder)
    out.print(f"{folder} is a project of a2rl; continue with: cd {folder} && a2rl doctor", soft_wrap=True)


def make_project(shipped: Path, folder: Path) -> None:
    """Copies the application into a new folder, which exists only when it is complete.

    Args:
        shipped: The application as the package has it.
        folder: The new project.

    Raises:
        UsageError: The folder exists.
        InfrastructureError: The disk failed.
    """
    folder = folder.absolute()
    if folder.exists():
        raise UsageError(f"{folder} exists: give a folder that does not exist yet")
    making = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        shutil.copytree(shipped, making, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (making / "dvc.yaml", making / "models" / "dvc.yaml"):
            path.write_text(ON_OUR_CODE.sub("", path.read_text(encoding="utf-8")), encoding="utf-8")
        with (making / ".dvc" / "config").open("a", encoding="utf-8") as config:
            config.write("    no_scm = true\n")  # a project need not be a git repository
        (making / MADE_BY).write_text(f"{a2rl.__version__}\n", encoding="utf-8")
        making.replace(folder)
    except OSError as error:
        raise machine_failure(f"make {folder}", error) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
