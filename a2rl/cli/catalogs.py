"""`a2rl agents`, `a2rl models` and `a2rl tasks`: what there is, and how to get or begin one."""

import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from a2rl.agent_systems.definition import agent_ids, find_agent
from a2rl.agent_systems.installation import Installation
from a2rl.cli.console import err, out, print_json, print_table, say, say_aside
from a2rl.cli.options import Json, Source, nearest_variant
from a2rl.cli.progress import byte_bar
from a2rl.core.errors import A2rlError, UsageError, unknown_name
from a2rl.core.files import machine_failure
from a2rl.core.settings import Settings
from a2rl.models.base_model import TINY
from a2rl.models.checkpoint import parameters_in
from a2rl.models.pretrained import CATALOGUE
from a2rl.models.pretrained_store import PretrainedStore
from a2rl.task_api.catalog import SKELETONS, check_name, find_task, load_task, tasks_here
from a2rl.task_api.contract import place_in_task

SLOW_S = 20.0

agents_app = typer.Typer(invoke_without_command=True)


@agents_app.callback()
def agents(
    context: typer.Context,
    as_json: Json = False,
) -> None:
    """List available agent systems; `a2rl agents install ID` installs one.

    Example: `a2rl agents`
    """
    if context.invoked_subcommand is not None:
        return

    settings = Settings.load()
    found = [find_agent(agent_id, settings.root) for agent_id in agent_ids(settings.root)]
    installations = [Installation(agent, settings) for agent in found]
    if as_json:
        print_json(
            [
                each.agent.model_dump(mode="json", by_alias=True)
                | {
                    "installed": each.version is not None or not each.is_needed,
                    "version": each.version,
                    "missing": each.missing(None),
                }
                for each in installations
            ]
        )
        return
    rows = [
        (
            each.agent.id,
            each.agent.title,
            each.version or ("no" if each.is_needed else "built in"),
            each.agent.driver or "-",
            "; ".join(each.missing(None)) or "nothing",
        )
        for each in installations
    ]
    print_table(("agent", "description", "installed", "driver", "missing"), rows)
    out.print("\nWith `--base-url` an agent uses an LLM of your own and needs no key.", style="dim", markup=False)


@agents_app.command()
def install(ids: Annotated[list[str], typer.Argument(help="Agent ids.")]) -> None:
    """Install agent systems at their pinned versions, into `.agents/` of this checkout.

    Example: `a2rl agents install claude-code codex`
    """
    settings = Settings.load()
    failed = 0
    for agent in [find_agent(each, settings.root) for each in ids]:
        with err.status(Text(f"installing {agent.id}: about a minute")):
            try:
                Installation(agent, settings).install(lambda text: out.print(text, markup=False))
            except A2rlError as error:
                failed += 1
                say_aside(f"{agent.id}: {error}", style="red")
    if failed:
        sys.exit(1)


models_app = typer.Typer(invoke_without_command=True)


class ListedModel(NamedTuple):
    """One row of `a2rl models`."""

    name: str
    state: str
    parameters: int | None
    disk_bytes: int | None
    """What it takes on disk; None if it is not there."""
    download_bytes: int | None
    licence: str
    description: str


@models_app.callback()
def models(context: typer.Context, as_json: Json = False) -> None:
    """List base models that `--model` knows by name; `a2rl models get NAME` gets one.

    Example: `a2rl models`
    """
    if context.invoked_subcommand is not None:
        return

    found = list_models(Settings.load())
    if as_json:
        print_json([row._asdict() for row in found])
        return
    rows = [
        (
            row.name,
            row.state,
            f"{row.parameters / 1e6:,.0f}M" if row.parameters else "-",
            _size(row.disk_bytes) if row.disk_bytes is not None else f"({_size(row.download_bytes)} to download)",
            row.licence,
            row.description,
        )
        for row in found
    ]
    print_table(("model", "state", "parameters", "on disk", "licence", "description"), rows, ("parameters",))
    out.print(
        "\n`--model` also takes a folder, a GGUF file, or a hub id such as Qwen/Qwen2.5-0.5B.",
        style="dim",
        markup=False,
    )


@models_app.command()
def get(
    name: Annotated[str, typer.Argument(help="The name of a model; `a2rl models` lists them.")],
    accept_license: Annotated[
        bool, typer.Option("--accept-license", help="You have read the model's terms of use and accept them.")
    ] = False,
) -> None:
    """Download a pretrained model. A run with `--model NAME` does the same on first use.

    Example: `a2rl models get smollm2-135m`
    """
    settings = Settings.load()
    if name not in CATALOGUE:
        raise unknown_name("model to get", name, CATALOGUE)
    model, store = CATALOGUE[name], PretrainedStore(settings)
    say(f"{name}: {model.licence.name}, {model.licence.url}")
    if accept_license:
        store.accept_licence(model)
    fetch([name], settings)
    say(f"{name} is in {store.folder(model)}")


def fetch(names: Iterable[str], settings: Settings) -> None:
    """Downloads the models of the catalogue among these names that are not here yet.

    Raises:
        UsageError: A licence is not accepted.
        InfrastructureError: A download or a conversion failed.
    """
    store, wanted = PretrainedStore(settings), dict.fromkeys(names)
    for model in (CATALOGUE[name] for name in wanted if name in CATALOGUE):
        if store.state(model) != "ready":
            store.require_licence(model)
            if not err.is_terminal:  # where there is no bar, one line says what takes so long
                say_aside(f"downloading {model.name} ({_size(model.download_bytes)}), once")
            with byte_bar(f"downloading {model.name}") as on_progress:
                store.get(model, on_progress)


def list_models(settings: Settings) -> list[ListedModel]:
    """Lists `tiny`, the pretrained models, and other checkpoints in models/."""
    store = PretrainedStore(settings)
    tiny = settings.models / TINY
    state = "ready" if (tiny / "config.json").is_file() else "missing"
    found = [ListedModel(TINY, state, parameters_in(tiny), _bytes(tiny), 0, "MIT", "for the mini variants")]
    for model in CATALOGUE.values():
        found.append(
            ListedModel(
                model.name,
                store.state(model),
                model.parameters,
                _bytes(store.folder(model)),
                model.download_bytes,
                model.licence.name,
                model.title,
            )
        )
    named = {TINY, *CATALOGUE}
    others = (path.parent for path in sorted(settings.models.glob("*/config.json")))
    return found + [
        ListedModel(f"models/{folder.name}", "ready", parameters_in(folder), _bytes(folder), 0, "-", "a folder")
        for folder in others
        if folder.name not in named and not folder.name.startswith(".")
    ]


def _bytes(folder: Path) -> int | None:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else None


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f} MB"


tasks_app = typer.Typer(invoke_without_command=True)


@tasks_app.callback()
def tasks(context: typer.Context, as_json: Json = False) -> None:
    """List available tasks; `a2rl tasks new NAME` begins one of your own, `a2rl tasks check FOLDER` checks it.

    Example: `a2rl tasks --json`
    """
    if context.invoked_subcommand is not None:
        return

    of_name = {task.id.partition("-")[0]: task for task in tasks_here(Settings.load().root).values()}
    found = of_name.values()  # of one's own, the version that was named last
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


@tasks_app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name is the task's name.")],
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Episodes of an environment instead of questions with one answer.")
    ] = False,
) -> None:
    """Begin a task of your own: a small whole one, to be changed step by step.

    Example: `a2rl tasks new capitals`
    """
    check_name(folder.resolve().name, Settings.load().root)
    if folder.exists():
        raise UsageError(f"{folder} exists: give another name, or remove it")
    source = SKELETONS / ("interactive" if interactive else "static")
    try:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__*"))
        definition = folder / "task.py"
        definition.write_text(definition.read_text(encoding="utf-8").replace("NAME", folder.resolve().name))
    except OSError as error:
        raise machine_failure(f"write {folder}", error) from error
    say(f"{folder} has a whole task. Change it, and see whether it keeps its contract:")
    say(f"  a2rl tasks check {folder}")
    say(f"  a2rl run --task {folder} --agent scripted --budget 2m")


@contextmanager
def _saying_where() -> Iterator[None]:
    """Says every now and then which line of a task is at work, because it may never end."""

    def say_where(_: int, frame: FrameType | None) -> None:
        place = place_in_task(reversed([*traceback.walk_stack(frame)]))
        say_aside(f"still at work{place and f' in {place}'}; Ctrl-C ends it", style="dim")

    before = signal.signal(signal.SIGALRM, say_where)
    signal.setitimer(signal.ITIMER_REAL, SLOW_S, SLOW_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@tasks_app.command()
def check(
    task: Annotated[str, typer.Argument(help="A task as `--task` takes it: a folder, an id, or `PACKAGE:NAME`.")],
    variant: Annotated[str | None, typer.Option(help="mini or full; unless given, what the task has.")] = None,
    source: Source = None,
) -> None:
    """Check a task against its contract: the data, the right answers, the halves, and what a grade costs.

    Example: `a2rl tasks check ./capitals`
    """
    from a2rl.task_api.check import TaskCheck

    settings = Settings.load()
    task_id = find_task(task, settings.root)
    nearest = nearest_variant(load_task(task_id, settings.root), variant or "mini", source)
    with tempfile.TemporaryDirectory() as scratch, _saying_where():
        looked_at = TaskCheck(task_id, settings.root, nearest, source, Path(scratch))
        failed = 0
        for each in looked_at.run():
            mark, style = ("no ", "red") if each.problem else ("yes", "green")
            say(f"{mark}  {each.claim}", style=style)
            if each.problem:
                failed += 1
                say(f"     {each.problem}")
        if not failed:
            for line in looked_at.example():
                say(line)
            say(f"grading takes {looked_at.costs()}, besides the model")
        for line in looked_at.missing():
            say(line, style="dim")
    if failed:
        raise A2rlError(f"{failed} of the checks failed: docs/adding-a-task.md explains the contract")
    say(f"{task_id} keeps the contract")
