"""`a2rl models`: the base models that have names, which of them are on this machine, and how to get the others."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from a2rl.cli.options import Json
from a2rl.core.settings import Settings

if TYPE_CHECKING:
    from a2rl.models.pretrained_store import OnProgress

app = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})


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


@app.callback()
def models(context: typer.Context, as_json: Json = False) -> None:
    """List base models that `--model` knows by name; `a2rl models get NAME` gets one.

    Example: `a2rl models`
    """
    if context.invoked_subcommand is not None:
        return
    from a2rl.cli.console import out, print_json, print_table

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


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="The name of a model; `a2rl models` lists them.")],
    accept_license: Annotated[
        bool, typer.Option("--accept-license", help="You have read the model's terms of use and accept them.")
    ] = False,
) -> None:
    """Download a pretrained model. A run with `--model NAME` does the same on first use.

    Example: `a2rl models get smollm2-135m`
    """
    from a2rl.cli.console import out
    from a2rl.core.errors import unknown_name
    from a2rl.models.pretrained import CATALOGUE
    from a2rl.models.pretrained_store import PretrainedStore

    settings = Settings.load()
    if name not in CATALOGUE:
        raise unknown_name("model to get", name, CATALOGUE)
    model, store = CATALOGUE[name], PretrainedStore(settings)
    out.print(f"{name}: {model.licence.name}, {model.licence.url}", markup=False, soft_wrap=True)
    if accept_license:
        store.accept_licence(model)
    fetch([name], settings)
    out.print(f"{name} is in {store.folder(model)}", markup=False, soft_wrap=True)


def fetch(names: Iterable[str], settings: Settings) -> None:
    """Downloads the models of the catalogue among these names that are not here yet.

    Raises:
        UsageError: A licence is not accepted.
        InfrastructureError: A download or a conversion failed.
    """
    from a2rl.models.pretrained import CATALOGUE
    from a2rl.models.pretrained_store import PretrainedStore

    store, wanted = PretrainedStore(settings), dict.fromkeys(names)
    for model in (CATALOGUE[name] for name in wanted if name in CATALOGUE):
        if store.state(model) != "ready":
            store.require_licence(model)
            with _progress(model.name, model.download_bytes) as on_progress:
                store.get(model, on_progress)


@contextmanager
def _progress(name: str, total: int) -> Iterator["OnProgress"]:
    """Shows a bar on a terminal; elsewhere, one line says what takes so long."""
    from a2rl.cli.console import err
    from a2rl.cli.progress import byte_bar

    if not err.is_terminal:
        err.print(f"downloading {name} ({_size(total)}), once", markup=False, soft_wrap=True)
    with byte_bar(f"downloading {name}") as on_progress:
        yield on_progress


def list_models(settings: Settings) -> list[ListedModel]:
    """Lists `tiny`, the pretrained models, and other checkpoints in models/."""
    from a2rl.models.base_model import TINY
    from a2rl.models.pretrained import CATALOGUE
    from a2rl.models.pretrained_store import PretrainedStore

    store = PretrainedStore(settings)
    tiny = settings.models / TINY
    state = "ready" if (tiny / "config.json").is_file() else "missing"
    found = [ListedModel(TINY, state, _parameters(tiny), _bytes(tiny), 0, "MIT", "for the mini variants")]
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
        ListedModel(f"models/{folder.name}", "ready", _parameters(folder), _bytes(folder), 0, "-", "a folder")
        for folder in others
        if folder.name not in named and not folder.name.startswith(".")
    ]


def _parameters(folder: Path) -> int | None:
    from math import prod

    from a2rl.core.errors import InvalidSubmissionError
    from a2rl.models.checkpoint import tensors_of

    try:
        return sum(prod(tensor.shape) for tensor in tensors_of(folder).values()) or None
    except (InvalidSubmissionError, OSError):
        return None


def _bytes(folder: Path) -> int | None:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else None


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.0f} MB"
