"""Finds the base model and the hidden data of a run.

Records store paths inside the checkout relative to it, so that a checkout or a run directory can be copied or moved.
An input that is missing or has another digest is an infrastructure error that says how to restore it; it never
counts against a submission.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import InfrastructureError, MissingInputError, UsageError
from a2rl.core.settings import Settings
from a2rl.models.base_model import TINY, local_folder, model_digest, reference_name, resolve_model
from a2rl.models.checkpoint import check_base_model
from a2rl.models.pretrained import CATALOGUE
from a2rl.run.directory import RunDir
from a2rl.run.records import SetupRecord
from a2rl.run.spec import RunSpec
from a2rl.task_api.data import can_draw, ensure_drawn, hidden_digest

OF_OTHERS = ".of-others"
"""A mark in the directory of a run that came in a bundle: the paths in its records are not followed."""

FindModel = Callable[[str, Settings], Path | None]


class Inputs(NamedTuple):
    """The folders that grading reads."""

    base_model: Path
    hidden: Path


def place_in(root: Path, path: Path) -> Path:
    """Returns the path as a record stores it: relative to the checkout if it is inside."""
    return path.relative_to(root) if path.is_relative_to(root) else path


def check_inputs(run: RunDir) -> Inputs:
    """Finds the inputs and checks that they have not changed since the run started; call this before grading.

    Raises:
        MissingInputError: One of them is missing or has changed.
    """
    ready, found = run.need("setup", SetupRecord), Inputs(base_model_of(run), hidden_of(run))
    if hidden_digest(found.hidden.parent) != ready.data_digest:
        how = "restore it" if run.spec.draw is None else "remove that folder, so that it is drawn again, or restore it"
        raise MissingInputError(
            f"the data in {found.hidden.parent} has changed since run {run.id} started: {how}, or start a new run"
        )
    # A model at its recorded path is not hashed again, because reading a large model takes long.
    if found.base_model != ready.base_model and model_digest(found.base_model) != ready.model_digest:
        raise MissingInputError(
            f"the model in {found.base_model} is not the one run {run.id} started with: restore it, or start a new run"
        )
    return found


def find_base_model(run: RunDir, find: FindModel = local_folder) -> Path | None:
    """Finds the folder of the base model; None if it is not on this machine.

    Args:
        find: Finds a model by its name. A command that only reads a run downloads nothing: its author chose the name.
    """
    found = (folder for folder in _models(run, find) if (folder / "config.json").is_file())
    return next((folder for folder in found if any(folder.glob("*.safetensors"))), None)


def base_model_of(run: RunDir) -> Path:
    """Finds the folder of the base model, to grade with it; it is downloaded again if it has to be.

    Raises:
        MissingInputError: It is not there.
    """
    if (found := find_base_model(run, resolve_model)) is not None:
        return found
    wanted = run.checkout / run.need("setup", SetupRecord).base_model
    raise MissingInputError(
        f"the base model of run {run.id} is no longer in {wanted}: put it back there{how_to_get(run.spec.model)}, "
        f"then `a2rl resume {run.id}`"
    )


def how_to_get(model: str) -> str:
    """Returns how a base model that is missing is made, in brackets after a blank; empty if nothing is known."""
    return f" (`a2rl models get {model}` gets it)" if model in (TINY, *CATALOGUE) else ""


def given_model(run: RunDir) -> Path:
    """Returns the folder of the base model that the agent is given."""
    return run.given / "models" / reference_name(run.spec.model)


def eval_set(spec: RunSpec, settings: Settings) -> Path | None:
    """Returns the folder with the eval set that was drawn for a run, made again if it is missing.

    Returns:
        None if its items are not drawn.

    Raises:
        InfrastructureError: It cannot be written.
    """
    if spec.draw is None or not can_draw(spec.task, spec.variant):
        return None
    folder = settings.drawn(spec.draw.name, spec.task)
    return ensure_drawn(spec.task, spec.draw.items_seed(spec.task), folder)


def hidden_of(run: RunDir) -> Path:
    """Finds the folder of the hidden data; one that was drawn is made again if it is missing.

    Raises:
        MissingInputError: It is not there.
    """
    spec = run.spec
    if (drawn := eval_set(spec, settings_of(run))) is not None:
        return drawn / "hidden"
    usual = settings_of(run).data(spec.task, spec.variant) / "hidden"
    wanted = run.checkout / run.need("setup", SetupRecord).hidden
    for folder in (wanted, usual) if not is_of_others(run) else (usual,):
        if folder.is_dir():
            return folder
    raise MissingInputError(
        f"the hidden data of run {run.id} is no longer in {wanted}: restore it, or prepare it again with "
        f"`a2rl prepare --task {spec.task} --variant {spec.variant}`, then `a2rl resume {run.id}`"
    )


def visible_of(run: RunDir) -> Path:
    """Finds the folder of the data that the agent gets a copy of; what is drawn for a run has only hidden data.

    Raises:
        MissingInputError: It is not there.
    """
    beside = hidden_of(run).with_name("visible")
    return beside if beside.is_dir() else settings_of(run).data(run.spec.task, run.spec.variant) / "visible"


def _models(run: RunDir, find: FindModel) -> Iterator[Path]:
    """Yields the possible folders: the recorded path, the one given to the agent, the current path of its name."""
    if is_of_others(run):
        name, settings = run.spec.model, settings_of(run)
        if not (Path(name).exists() or name.startswith((".", "/", "~"))):  # a path was chosen by its author
            yield from filter(None, [settings.models / name, local_folder(name, settings)])
        return
    yield run.checkout / run.need("setup", SetupRecord).base_model
    yield given_model(run)
    with suppress(UsageError, InfrastructureError):
        if (named := find(run.spec.model, settings_of(run))) is not None:
            check_base_model(named)  # a download may have been interrupted
            yield named


def is_of_others(run: RunDir) -> bool:
    """Says whether a run came in a bundle."""
    return (run.root / OF_OTHERS).exists()


def settings_of(run: RunDir) -> Settings:
    """Returns the settings of the checkout that contains a run."""
    return Settings(run.checkout, Settings.load(run.checkout).environ)  # a download needs the environment
