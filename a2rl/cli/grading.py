"""`a2rl grade`, `a2rl score` and `a2rl prepare`: the tasks and their graders, without a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from a2rl.cli.console import out, print_json, print_table, say
from a2rl.cli.options import Json, Judge, Source, Split, Task, Variant, nearest_variant
from a2rl.cli.progress import progress_bar
from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.settings import Settings
from a2rl.task_api.catalog import find_task, load_task
from a2rl.task_api.data import prepare_data


def grade(
    context: typer.Context,
    task: Task,
    model: Annotated[
        str, typer.Option(help="The checkpoint: a name (`a2rl models`), a folder, a GGUF file, or a hub id.")
    ],
    variant: Variant = "mini",
    source: Source = None,
    split: Split = "all",
    limit: Annotated[int | None, typer.Option(min=1, help="Grade only this many items, always the same.")] = None,
    backend: Annotated[str | None, typer.Option(help="transformers or vllm.")] = None,
    generation: Annotated[
        str, typer.Option(help="How the model answers: temperature=0.6,samples=4 ...; the rest as params.yaml says.")
    ] = "",
    judge: Judge = None,
    dtype: Annotated[
        str | None, typer.Option(help="Number format: auto (by MODEL), float32, bfloat16 or float16.")
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option(help="Write the model's answer to each item to this file, as JSON Lines.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint, without a run or an agent. The task may have options of its own: see `a2rl tasks`.

    Examples: `a2rl grade --task gsm8k --variant full --source ~/gsm8k --model output/v1 --json`,
    `a2rl grade --task alfworld --model tiny --prompts none`
    """
    from a2rl.cli.scoring import GradeRequest, grade_checkpoint, task_options

    settings = Settings.load()
    options = task_options(context.args)
    request = GradeRequest(task, model, variant, source, split, limit, backend, generation, dtype, options, judge)
    with progress_bar(f"grading {model} on {task} ({variant})") as on_progress:
        graded = grade_checkpoint(settings, request, on_progress, outputs)
    _show_score(graded.score, as_json, graded.settings, graded.sample)
    if graded.problem:
        raise A2rlError(graded.problem)


def score(
    task: Task,
    outputs: Annotated[Path, typer.Option(help="JSON Lines of {id, completion}.")],
    variant: Variant = "mini",
    source: Source = None,
    split: Split = "all",
    judge: Judge = None,
    as_json: Json = False,
) -> None:
    """Score completions that were generated elsewhere.

    The ids are those of the task's data. For gsm8k they are the row numbers of the test file, from 0.

    Example: `a2rl score --task gsm8k --variant full --source ~/gsm8k --outputs completions.jsonl`
    """
    from a2rl.cli.scoring import score_file

    _show_score(score_file(Settings.load(), task, outputs, variant, source, split, judge), as_json)


def prepare(task: Task, variant: Variant = "mini", source: Source = None) -> None:
    """Prepare a task's data, replacing what is there.

    Example: `a2rl prepare --task gsm8k --variant full --source ~/gsm8k`
    """
    settings = Settings.load()
    found = load_task(find_task(task, settings.root), settings.root)
    folder = prepare_data(found.id, nearest_variant(found, variant, source), source, settings)
    out.print(f"{folder}/visible for the agent, {folder}/hidden for the grader")


def _show_score(result: Any, as_json: bool, settings: dict[str, str] | None = None, sample: str = "") -> None:
    say(
        f"score {result}  (correct {result.correct}, wrong {result.wrong}, truncated {result.truncated}, "
        f"errored {result.errored}; {sample or result.total} items in {result.seconds:.1f} s)"
    )
    if result.groups:
        rows = [
            (name, f"{group.score:.1f}" if group.score is not None else "-", str(group.total))
            for name, group in result.groups.items()
        ]
        print_table(("kind", "score", "items"), rows, right=("score", "items"))
    if result.measures:
        say(", ".join(f"{name} {value:.2f}" for name, value in result.measures.items()))
    if as_json:
        more = {name: value for name, value in (("settings", settings), ("sample", sample)) if value}
        print_json(result.model_dump(mode="json") | more)
    if result.score is None:
        kind = UsageError if result.total == 0 else A2rlError
        raise kind(f"there is no score: {result.reason}")
