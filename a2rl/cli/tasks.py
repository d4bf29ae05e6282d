"""`a2rl tasks`: the tasks; and how a new one is begun and checked."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from a2rl.cli.options import Json, Source
from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.settings import Settings

app = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def tasks(context: typer.Context, as_json: Json = False) -> None:
    """List available tasks; `a2rl tasks new NAME` begins one of your own, `a2rl tasks check FOLDER` checks it.

    Example: `a2rl tasks --json`
    """
    if context.invoked_subcommand is not None:
        return
    from a2rl.cli.console import out, print_json, print_table
    from a2rl.task_api.catalog import load_task, own_task_ids, task_ids

    settings = Settings.load()
    known = [*task_ids(settings.root), *own_task_ids(settings.root)]
    found = [load_task(task_id, settings.root) for task_id in known]
    if as_json:
        print_json([task.model_dump(mode="json") for task in found])
        return
    rows = []
    for task in found:
        sizes = (str(variant.eval_items) if variant else "-" for variant in (task.mini, task.full))
        rows.append((task.id, str(task.level), task.metric, *sizes, task.source.url))
    print_table(("task", "level", "metric", "mini", "full", "source"), rows, right=("mini", "full"))
    options = [
        (f"{task.id}: --{name} {'|'.join(option.choices)}", f"{option.help} Default: {option.default}.")
        for task in found
        for name, option in task.options.items()
    ]
    if options:
        out.print()
        print_table(("option", ""), options)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name is the task's name.")],
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Episodes of an environment instead of questions with one answer.")
    ] = False,
) -> None:
    """Begin a task of your own: a small whole one, to be changed step by step.

    Example: `a2rl tasks new capitals`
    """
    from a2rl.cli.console import out
    from a2rl.task_api import skeletons
    from a2rl.task_api.catalog import check_name

    check_name(folder.resolve().name, Settings.load().root)
    if folder.exists():
        raise UsageError(f"{folder} exists: give another name, or remove it")
    source = Path(str(skeletons.__file__)).with_name("interactive" if interactive else "static")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__*"))
    definition = folder / "task.py"
    definition.write_text(definition.read_text(encoding="utf-8").replace("NAME", folder.resolve().name))
    out.print(f"{folder} has a whole task. Change it, and see whether it keeps its contract:", soft_wrap=True)
    out.print(f"  a2rl tasks check {folder}", markup=False, soft_wrap=True)
    out.print(f"  a2rl run --task ./{folder} --agent scripted --budget 2m", markup=False, soft_wrap=True)


@app.command()
def check(
    task: Annotated[str, typer.Argument(help="The folder of a task, or the id of one.")],
    variant: Annotated[str | None, typer.Option(help="mini or full; unless given, what the task has.")] = None,
    source: Source = None,
) -> None:
    """Check a task against its contract: the data, the right answers, the halves, and what a grade costs.

    Example: `a2rl tasks check ./capitals`
    """
    from a2rl.cli.console import out
    from a2rl.cli.scoring import known_variant
    from a2rl.task_api.catalog import find_task, load_task
    from a2rl.task_api.check import TaskCheck

    settings = Settings.load()
    task_id = find_task(task, settings.root)
    nearest = load_task(task_id, settings.root).nearest(known_variant(variant or "mini"))
    with tempfile.TemporaryDirectory() as scratch:
        looked_at = TaskCheck(task_id, settings.root, nearest, source, Path(scratch))
        failed = 0
        for each in looked_at.run():
            mark, style = ("no ", "red") if each.problem else ("yes", "green")
            out.print(f"{mark}  {each.claim}", style=style, markup=False, soft_wrap=True)
            if each.problem:
                failed += 1
                out.print(f"     {each.problem}", markup=False, soft_wrap=True)
        if not failed:
            out.print(f"grading takes {looked_at.costs()}, besides the model", markup=False, soft_wrap=True)
        for line in looked_at.missing():
            out.print(line, style="dim", markup=False, soft_wrap=True)
    if failed:
        raise A2rlError(f"{failed} of the checks failed: docs/adding-a-task.md explains the contract")
    out.print(f"{task_id} keeps the contract", markup=False, soft_wrap=True)
