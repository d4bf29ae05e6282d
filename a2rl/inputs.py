"""The base model and the hidden data of a run, wherever its checkout lies now.

Records keep places in the checkout relative to it, so that a checkout, or a run's directory, may be copied or moved.
What is not there any more, or is something else by its digest, is an error of the machine and says how to mend it; it
is never held against a submission.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from a2rl.data import hidden_digest
from a2rl.errors import InfrastructureError, MissingInput, UsageError
from a2rl.models import model_digest, resolve_model
from a2rl.records import SetupRecord
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.workspace import model_name


class Inputs(NamedTuple):
    """Two folders."""

    base_model: Path
    hidden: Path


def place_in(root: Path, path: Path) -> Path:
    """As a record keeps it: relative to the checkout where it lies in it."""
    return path.relative_to(root) if path.is_relative_to(root) else path


def inputs_of(run: RunDir) -> Inputs:
    """Where they are now.

    Raises:
        MissingInput: one of them is not there.
    """
    return Inputs(base_model_of(run), hidden_of(run))


def check_inputs(run: RunDir) -> Inputs:
    """The same, and that they are what the run began with; to be called before something is graded with them.

    Raises:
        MissingInput: one of them is not there, or is another than it was.
    """
    ready, found = run.need("setup", SetupRecord), inputs_of(run)
    if hidden_digest(found.hidden.parent) != ready.data_digest:
        raise MissingInput(
            f"the data in {found.hidden.parent} is not what run {run.id} began with: restore it, or start a new run"
        )
    # One outside of the checkout is where it was: whose it is, is its owner's matter, and to read it all takes long.
    if found.base_model != ready.base_model and model_digest(found.base_model) != ready.model_digest:
        raise MissingInput(
            f"the model in {found.base_model} is not what run {run.id} began with: restore it, or start a new run"
        )
    return found


def base_model_of(run: RunDir) -> Path:
    """Raises MissingInput: it is not there."""
    for folder in _models(run):
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return folder
    wanted = run.checkout / run.need("setup", SetupRecord).base_model
    raise MissingInput(
        f"the base model of run {run.id} is not in {wanted} any more: put it back there"
        f"{' (`make data` builds tiny)' if run.spec.model == 'tiny' else ''}, then `a2rl resume {run.id}`"
    )


def hidden_of(run: RunDir) -> Path:
    """Raises MissingInput: it is not there."""
    spec = run.spec
    usual = _settings(run).data(spec.task, spec.variant) / "hidden"
    wanted = run.checkout / run.need("setup", SetupRecord).hidden
    for folder in (wanted, usual):
        if folder.is_dir():
            return folder
    raise MissingInput(
        f"the hidden data of run {run.id} is not in {wanted} any more: restore it, or make it anew with "
        f"`a2rl prepare --task {spec.task} --variant {spec.variant}`, then `a2rl resume {run.id}`"
    )


def _models(run: RunDir) -> Iterator[Path]:
    """Where the base model may be: where it was, where its name leads now, and the agent's own copy."""
    yield run.checkout / run.need("setup", SetupRecord).base_model
    yield run.given / "models" / model_name(run.spec.model)
    with suppress(UsageError, InfrastructureError):
        yield resolve_model(run.spec.model, _settings(run))


def _settings(run: RunDir) -> Settings:
    return Settings(run.checkout, {})
