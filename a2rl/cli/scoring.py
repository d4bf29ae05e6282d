"""Grading for `a2rl grade` and `a2rl score`: checkpoints and completions, without a run."""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from a2rl.cli.catalogs import fetch
from a2rl.cli.options import nearest_variant, one_of
from a2rl.config.params import Params, load_params
from a2rl.config.preset import parsed, resolved
from a2rl.core.errors import A2rlError, IntegrityError, UsageError
from a2rl.core.files import read_jsonl, write_jsonl
from a2rl.core.settings import Settings
from a2rl.core.urls import require_certificates, require_proxies
from a2rl.grading.devices import held_device, planned_for
from a2rl.grading.job import EngineChoice, GradeJob, ids_of_job, judge_of, score_items, selected_ids
from a2rl.grading.model_process import require_complete
from a2rl.grading.outputs import OnProgress
from a2rl.grading.pool import grade_now
from a2rl.grading.prompt_check import check_prompts
from a2rl.judge.params import JudgeConfig, JudgeParams
from a2rl.models.base_model import resolve_model
from a2rl.models.finite import require_finite_weights
from a2rl.results.outputs import graded_outputs
from a2rl.run.ranking import sample_in_words
from a2rl.sampling import Backend
from a2rl.sampling.engine_params import DtypeSetting
from a2rl.scoring.score import TaskScore
from a2rl.task_api.catalog import find_task, load_grader, load_task
from a2rl.task_api.contract import JudgedGrader, Options, PublishedGrader, Split, Task, Variant
from a2rl.task_api.data import about, ensure_data, hidden_digest, require_source


class CheckpointScore(NamedTuple):
    """A score, and the settings that it depends on."""

    score: TaskScore
    settings: dict[str, str]
    sample: str
    """The remark for a sample of the eval set; empty for all of it."""
    problem: str = ""
    """Why the outputs could not be written; empty if they were, or if nobody wants them."""


def task_options(arguments: Sequence[str]) -> dict[str, str]:
    """Parses the options that the command itself does not define: `--name value` and `--name=value`.

    Raises:
        UsageError: An argument is not an option.
    """
    found: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        name, is_whole, value = waiting.pop(0).partition("=")
        if not name.startswith("--") or not (is_whole or waiting):
            raise UsageError(
                f"{name!r} is not an option: see `a2rl grade --help`, and `a2rl tasks` for the options of a task"
            )
        found[name.removeprefix("--")] = value if is_whole else waiting.pop(0)
    return found


def usable_judge(
    params: Params, task: Task, variant: Variant, name: str | None, settings: Settings
) -> JudgeParams | None:
    """Returns the judge for a task's answers as `Params.judge_for` does, before anything is made that needs it.

    Raises:
        UsageError: There is no such judge, its key is not set, or this machine's proxy or certificates cannot be used.
    """
    if isinstance(load_grader(task.id), JudgedGrader):
        require_proxies(settings.environ)
        require_certificates(settings.environ)
    if (judge := params.judge_for(task, variant, name)) is not None:
        JudgeConfig.by(judge, settings)
    return judge


@dataclass(frozen=True, slots=True)
class GradeRequest:
    """What to grade, as the user names it. None, or an empty text: as params.yaml says."""

    task: str
    model: str
    variant: str
    source: Path | None = None
    split: str = "all"
    limit: int | None = None
    backend: str | None = None
    generation: str = ""
    dtype: str | None = None
    options: Options = field(default_factory=dict)
    judge: str | None = None


def grade_checkpoint(
    settings: Settings, request: GradeRequest, on_progress: OnProgress, outputs: Path | None = None
) -> CheckpointScore:
    """Grades a model with the worker that also grades submissions.

    Args:
        on_progress: Called repeatedly with how far it is.
        outputs: The file to write the model's answers to, one row for each item.

    Raises:
        UsageError: The task, the model or a setting does not exist, there are fewer items than asked for, the model
            cannot take the task's prompts, or the file cannot be written.
        InvalidSubmissionError: Some weights are missing or not finite.
        InfrastructureError: Grading failed.
    """
    if outputs is not None and (outputs.is_dir() or not os.access(outputs.parent, os.W_OK)):
        raise UsageError(f"--outputs {outputs} cannot be written: give a file in a folder that you may write to")
    with tempfile.TemporaryDirectory() as scratch:
        job = _job(settings, request, Path(scratch))
        data = ensure_data(job.task, job.variant, request.source, settings)
        ids_of_job(job)  # refuses a sample that the data is too small for, as the worker would
        check_prompts(job, request.model, job.model, job.hidden, settings.root)
        require_finite_weights(job.model)
        if job.backend == "vllm":
            require_complete(job.model, settings)
        for_one = job.vllm.tensor_parallel_size if job.vllm else 1
        with held_device(request.model, settings, for_one) as device:
            score = grade_now(planned_for(device, job, job.model), settings, [device], on_progress).score
        problem = _write_outputs(job.result, outputs) if outputs is not None else ""
    items = len(load_grader(job.task).item_ids(job.hidden))
    computed = {"computed in": job.dtype} if job.dtype else {}
    depends_on = {**job.options, "answers": job.generation.in_words(), **computed, **about(data)}
    depends_on["data digest"] = hidden_digest(data)[:16]
    return CheckpointScore(score, depends_on, sample_in_words(request.limit, items), problem)


def _job(settings: Settings, request: GradeRequest, scratch: Path) -> GradeJob:
    """Returns the job. The model may have to be downloaded, once all else that is asked for is known to exist."""
    params = load_params(settings.root)
    task, grading = load_task(find_task(request.task, settings.root), settings.root), params.grading
    variant = nearest_variant(task, request.variant, request.source)
    backend = one_of("back end", request.backend or grading.backend, Backend)
    dtype = one_of("dtype", request.dtype or grading.dtype, DtypeSetting)
    split = one_of("split", request.split, Split)
    generation = resolved(parsed(request.generation), task.id, variant, request.model, grading.generation)
    options = task.choose({**grading.options.get(task.id, {}), **request.options})
    judge = usable_judge(params, task, variant, request.judge, settings)
    require_source(task.id, variant, request.source, settings)
    fetch([request.model], settings)
    folder = resolve_model(request.model, settings)
    return GradeJob(
        root=settings.root,
        task=task.id,
        variant=variant,
        hidden=settings.data(task.id, variant) / "hidden",
        model=folder,
        split=split,
        split_seed=grading.split_seed,
        limit=request.limit,
        **dict(EngineChoice.of(backend, dtype, grading.vllm, folder)),
        exact=grading.exact,
        generation=generation,
        options=options,
        judge=judge,
        result=scratch / "grade.json",
        log=scratch / "grader.log",
    )


def _write_outputs(result: Path, target: Path) -> str:
    """Writes outputs as rows that `score_file` can read. Returns what went wrong, so that the score is still shown."""
    rows = []
    try:
        for output in graded_outputs(result):
            row = output.model_dump(mode="json")
            rows.append({"id": row.pop("item"), "completion": output.turns[-1].answer if output.turns else "", **row})
        write_jsonl(target, rows)
    except (OSError, A2rlError) as error:
        return f"the outputs could not be written to {target}: {error}"
    return ""


def score_file(
    settings: Settings,
    task: str,
    outputs: Path,
    variant: str,
    source: Path | None,
    split: str,
    judge: str | None = None,
) -> TaskScore:
    """Scores the completions in a file.

    Some tasks grade only a part of the published items. With the split `all`, completions for the others are scored
    too, so that published results can be reproduced.

    Raises:
        UsageError: The file does not exist, is not JSON Lines of {id, completion}, or has an id twice or an unknown id.
    """
    params, started = load_params(settings.root), time.monotonic()
    definition = load_task(find_task(task, settings.root), settings.root)
    task, nearest = definition.id, nearest_variant(definition, variant, source)
    judging, limits = usable_judge(params, definition, nearest, judge, settings), definition.variant(nearest).limits
    data = ensure_data(task, nearest, source, settings)
    completions = _read_completions(outputs)
    grader, hidden, seed = load_grader(task), data / "hidden", params.grading.split_seed
    ids, evaluated = (selected_ids(task, hidden, each, seed) for each in (one_of("split", split, Split), "all"))
    published = grader.published_ids(hidden) if isinstance(grader, PublishedGrader) else evaluated
    if unknown_ids := sorted(completions.keys() - set(published)):
        raise UsageError(f"{outputs} has an id that is not an item of {task} ({nearest}): {unknown_ids[0]!r}")
    if split == "all" and completions.keys() - set(evaluated):
        ids = published
    if judging is None:
        items = grader.score_outputs(completions, hidden, ids, limits)
    else:
        items = cast(JudgedGrader, grader).score_outputs(completions, hidden, ids, limits, judge_of(judging, settings))
    return score_items(task, hidden, items, time.monotonic() - started)


def _read_completions(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give JSON Lines of {{id, completion}}")
    completions: dict[str, str] = {}
    try:
        rows = read_jsonl(path)
    except IntegrityError as error:
        raise UsageError(str(error)) from error
    for number, row in enumerate(rows, start=1):
        if "id" not in row or not isinstance(row.get("completion"), str):
            raise UsageError(f"{path}, row {number}: needs an id and a completion, which is a string")
        if str(row["id"]) in completions:
            raise UsageError(f"{path}, row {number}: id {row['id']} occurs twice")
        if any("\ud800" <= character <= "\udfff" for character in row["completion"]):
            raise UsageError(f"{path}, row {number}: the completion has half a character, such as half an emoji")
        completions[str(row["id"])] = row["completion"]
    return completions
