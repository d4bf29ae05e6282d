"""A task as a folder for Harbor (format 1.4, harbor 0.25.0), so that its agents and cloud providers can work on it.

    write_harbor_task(settings, task="gsm8k", variant="mini", model="tiny", budget_s=1800.0, ..., target=target)

The agent's image has what an agent of ours is given: the visible data, the base model, and the packages to train with.
The verifier's image has the grader, the hidden items, and the base model, whose configuration and tokenizer count.
Only one folder goes from the one to the other: the checkpoint. The templates are in a2rl/export/harbor/.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from a2rl import __version__
from a2rl.config.plan import check_source
from a2rl.core.errors import InvalidSubmissionError, UsageError
from a2rl.core.files import machine_failure
from a2rl.core.settings import Settings
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import Source
from a2rl.models.base_model import model_name, resolve_model
from a2rl.run.budget import format_duration
from a2rl.task_api.catalog import find_task, is_of_package, load_task, task_folder
from a2rl.task_api.contract import Variant
from a2rl.task_api.data import ensure_data, hidden_digest, require_complete

TEMPLATES = Path(__file__).with_name("harbor")
BASE_MODEL = Path("models", "base")
"""The base model in the agent's workspace, and in the verifier's checkout."""
PROJECT = ("agents", "flows", "stages", "tasks/__init__.py", "params.yaml")
"""What the command line needs of a project, besides the task."""
NO_CODE = shutil.ignore_patterns("__pycache__", "*.pyc")


def write_harbor_task(
    settings: Settings,
    *,
    task: str,
    variant: Variant,
    source: Path | None,
    model: str,
    budget_s: float,
    gpus: int,
    solution: Path | None,
    target: Path,
    fetch: Callable[[], None],
) -> None:
    """Writes the folder of a task.

    Args:
        fetch: Downloads the model if it is not here yet; it is called once all else is known to exist.
        solution: A checkpoint that Harbor's oracle agent hands in; None: the untouched base model, which gains nothing.

    Raises:
        UsageError: The task, the model or the solution cannot be exported, or the folder exists.
        InfrastructureError: The data or the model cannot be had, or the folder cannot be written.
    """
    if is_of_package(task):
        raise UsageError(f"{task} is graded in an environment of its own: export another task")
    found = load_task(find_task(task, settings.root), settings.root)
    variant, code = found.nearest(variant), task_folder(found.id, settings.root)
    if variant in found.judged or found.serves_agents:
        raise UsageError(f"{found.id} ({variant}) needs a judge or services beside the grader: export another task")
    check_source(source, variant)
    if solution is not None and not solution.is_dir():
        raise UsageError(f"--solution {solution}: there is no such folder")
    if target.exists():
        raise UsageError(f"{target} exists: give a new folder")
    data = ensure_data(found.id, variant, source, settings)
    require_complete(data)
    fetch()
    base = resolve_model(model, settings)
    values = {
        "task": found,
        "variant": variant,
        "version": __version__,
        "data_digest": hidden_digest(data),
        "model": model_name(model),
        "gpus": gpus,
        "budget_s": budget_s,
        "budget": format_duration(budget_s),
        "description": (code / "description.md").read_text(encoding="utf-8"),
        "solution": "/solution/checkpoint" if solution else f"/workspace/{BASE_MODEL}",
    }
    packages = "requirements-agent-cuda.lock" if gpus else "requirements-agent-cpu.lock"
    workspace, checkout = Path("environment", "workspace"), Path("tests", "checkout")
    placed = {
        settings.root / packages: Path("environment", "requirements.txt"),
        data / "visible": workspace / "data",
        base: workspace / BASE_MODEL,
        settings.root / "requirements.lock": Path("tests", "requirements.txt"),
        data / "hidden": checkout / "data" / variant / found.id / "hidden",
        Path(__file__).resolve().parents[1]: checkout / "a2rl",
        **{settings.root / part: checkout / part for part in PROJECT},
        code: checkout / code.relative_to(settings.root),
    }
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, target, ignore_errors=True)  # the next try would be refused, because it exists
        try:
            _render(values, target)
            for original, place in placed.items():
                _copy(original, target / place)
            _copy(base, target / checkout / BASE_MODEL)
            if solution is not None:
                _copy(solution, target / "solution" / "checkpoint")
                with tempfile.TemporaryDirectory() as scratch:
                    copied = Source(target / "solution", "checkpoint")
                    copy_submission(copied, Path(scratch, "copy"), Requirements(base))
        except InvalidSubmissionError as error:
            raise UsageError(f"--solution {solution} cannot be graded: {error}") from error
        except OSError as error:
            raise machine_failure(f"write the task {target}", error) from error
        undo.pop_all()


def _render(values: Mapping[str, object], target: Path) -> None:
    templates = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    for path in sorted(TEMPLATES.rglob("*")):
        if path.is_file():
            written = target / path.relative_to(TEMPLATES)
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(templates.from_string(path.read_text(encoding="utf-8")).render(values), encoding="utf-8")
            if written.suffix == ".sh":
                written.chmod(0o755)


def _copy(original: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if original.is_dir():
        shutil.copytree(original, target, ignore=NO_CODE)
    else:
        shutil.copyfile(original, target)
