"""`a2rl grade` and `a2rl score`: the grader alone, for anyone with a checkpoint or with completions."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from a2rl.catalog import load_grader, load_task
from a2rl.data import about, ensure_data, hidden_digest
from a2rl.errors import IntegrityError, UsageError, unknown
from a2rl.files import read_jsonl
from a2rl.grading.job import GradeJob, score_items, selected_ids
from a2rl.grading.pool import grade_now
from a2rl.judge.params import Judging
from a2rl.models import resolve_model
from a2rl.params import load_params
from a2rl.sampling import Backend
from a2rl.score import TaskScore
from a2rl.settings import Settings
from a2rl.task import JudgedGrader, Options, PublishedGrader, Split, Variant


class Graded(NamedTuple):
    """A score, and what else decided it."""

    score: TaskScore
    settings: dict[str, str]


def task_options(arguments: Sequence[str]) -> dict[str, str]:
    """`--name value` and `--name=value`, as left over by the command's own options.

    Raises:
        UsageError: something else is among them.
    """
    found: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        name, is_whole, value = waiting.pop(0).partition("=")
        if not name.startswith("--") or not (is_whole or waiting):
            raise UsageError(f"{name!r} is no option: see `a2rl grade --help` and, for the task's own, `a2rl tasks`")
        found[name.removeprefix("--")] = value if is_whole else waiting.pop(0)
    return found


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
    options: Options,
    on_progress: Callable[[int, int], None],
) -> Graded:
    """Grades a model folder with the same worker that grades submissions."""
    params = load_params(settings.root)
    if backend is not None and backend not in get_args(Backend):
        raise unknown("back end", backend, get_args(Backend))
    options = load_task(task, settings.root).choose({**params.grading.options.get(task, {}), **options})
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
            options=options,
            judge=params.judge_for(load_task(task, settings.root), known_variant(variant)),
            result=Path(scratch) / "grade.json",
            log=Path(scratch) / "grader.log",
        )
        score = grade_now(job, settings, on_progress).score
    return Graded(score, {**options, **about(data), "data digest": hidden_digest(data)[:16]})


def score_file(
    settings: Settings, task: str, outputs: Path, variant: str, source: Path | None, split: str
) -> TaskScore:
    """Judges completions from a file.

    Some tasks grade a part of what is published; completions for the rest of it are judged too where all items are
    asked for, so that published results can be repeated.

    Raises:
        UsageError: the file is not there, not JSON Lines of {id, completion}, or names an item twice or none.
    """
    params, started = load_params(settings.root), time.monotonic()
    judge = params.judge_for(load_task(task, settings.root), known_variant(variant))
    data = ensure_data(task, known_variant(variant), source, settings)
    completions = _read_completions(outputs)
    grader, hidden, seed = load_grader(task), data / "hidden", params.grading.split_seed
    ids, evaluated = (selected_ids(task, hidden, each, seed) for each in (known_split(split), "all"))
    published = grader.published_ids(hidden) if isinstance(grader, PublishedGrader) else evaluated
    if strangers := sorted(completions.keys() - set(published)):
        raise UsageError(f"{outputs} has an id that is no item of {task} ({variant}): {strangers[0]!r}")
    if split == "all" and completions.keys() - set(evaluated):
        ids = published
    if judge is None:
        items = grader.score_outputs(completions, hidden, ids)
    else:
        items = cast(JudgedGrader, grader).score_outputs(completions, hidden, ids, Judging.by(judge, settings))
    return score_items(task, hidden, items, time.monotonic() - started)


def score_annotations(settings: Settings, task: str, annotations: Path, source: Path | None) -> dict[str, Any]:
    """The statistics of judgements that were made elsewhere, by the task's own `score_annotations`.

    Raises:
        UsageError: the task takes none, or the file holds none.
    """
    load_task(task, settings.root)
    score = getattr(load_grader(task), "score_annotations", None)
    if score is None:
        raise UsageError(f"{task} has no annotations of a judge to score: give completions with --outputs")
    if source is not None and not source.is_dir():
        raise UsageError(f"--source {source} is not a folder: give the folder with the task's data files")
    figures: dict[str, Any] = score(annotations, source, settings).model_dump(mode="json")
    return figures


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
