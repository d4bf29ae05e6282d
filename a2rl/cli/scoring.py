"""`a2rl grade` and `a2rl score`: the grader alone, for anyone with a checkpoint or with completions."""

import tempfile
import time
from pathlib import Path
from typing import cast, get_args

from a2rl.catalog import load_grader, load_task, unknown
from a2rl.data import ensure_data
from a2rl.errors import IntegrityError, UsageError
from a2rl.files import read_jsonl
from a2rl.grading.job import GradeJob, selected_ids
from a2rl.grading.pool import grade_now
from a2rl.models import resolve_model
from a2rl.params import load_params
from a2rl.sampling import Backend
from a2rl.score import TaskScore, summarise
from a2rl.settings import Settings
from a2rl.task import Split, Variant


def known_variant(name: str) -> Variant:
    """Raises UsageError unless it is a variant."""
    if name not in get_args(Variant):
        raise unknown("variant", name, get_args(Variant))
    return cast(Variant, name)


def known_split(name: str) -> Split:
    """Raises UsageError unless it is a split."""
    if name not in get_args(Split):
        raise unknown("split", name, get_args(Split))
    return cast(Split, name)


def grade_checkpoint(
    settings: Settings,
    task: str,
    model: str,
    variant: str,
    source: Path | None,
    split: str,
    limit: int | None,
    backend: str | None,
) -> TaskScore:
    """Grades a model folder with the same worker that grades submissions."""
    params = load_params(settings.root)
    if backend is not None and backend not in get_args(Backend):
        raise unknown("back end", backend, get_args(Backend))
    load_task(task, settings.root)
    folder = resolve_model(model, settings)
    data = ensure_data(task, known_variant(variant), source, settings)
    with tempfile.TemporaryDirectory() as scratch:
        job = GradeJob(
            root=settings.root,
            task=task,
            variant=known_variant(variant),
            hidden=data / "hidden",
            model=folder,
            split=known_split(split),
            split_seed=params.grading.split_seed,
            limit=limit,
            backend=cast(Backend, backend) if backend else params.grading.backend,
            exact=params.grading.exact,
            result=Path(scratch) / "grade.json",
            log=Path(scratch) / "grader.log",
        )
        return grade_now(job, settings).score


def score_file(
    settings: Settings, task: str, outputs: Path, variant: str, source: Path | None, split: str
) -> TaskScore:
    """Judges completions from a file.

    Raises:
        UsageError: the file is not there, not JSON Lines of {id, completion}, or names an item twice or none.
    """
    params, started = load_params(settings.root), time.monotonic()
    load_task(task, settings.root)
    data = ensure_data(task, known_variant(variant), source, settings)
    completions = _read_completions(outputs)
    ids = selected_ids(task, data / "hidden", known_split(split), params.grading.split_seed)
    known = set(selected_ids(task, data / "hidden", "all", params.grading.split_seed))
    if strangers := sorted(completions.keys() - known):
        raise UsageError(f"{outputs} has an id that is no item of {task} ({variant}): {strangers[0]!r}")
    items = load_grader(task).score_outputs(completions, data / "hidden", ids)
    return summarise(items, time.monotonic() - started)


def _read_completions(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise UsageError(f"no file {path}: give JSON Lines of {{id, completion}}")
    completions: dict[str, str] = {}
    try:
        rows = read_jsonl(path)
    except (IntegrityError, UnicodeDecodeError) as error:
        raise UsageError(str(error)) from error
    for number, row in enumerate(rows, start=1):
        if "id" not in row or not isinstance(row.get("completion"), str):
            raise UsageError(f"{path}, row {number}: needs an id and a completion (a text)")
        if str(row["id"]) in completions:
            raise UsageError(f"{path}, row {number}: id {row['id']} is there twice")
        completions[str(row["id"])] = row["completion"]
    return completions
