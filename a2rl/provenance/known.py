"""The list of known models, `known_models.yaml` in this folder: which of them are on this machine?"""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import yaml

from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.models.base_model import local_folder
from a2rl.models.checkpoint import tensors_of

LIST = "known_models.yaml"


class KnownModels(NamedTuple):
    """Models with which checkpoints of one base model are compared."""

    here: Mapping[str, Path]
    """The folders of those on this machine, by name."""
    elsewhere: tuple[str, ...]
    """The names of the others. They are not compared."""


def known_models(base: str, settings: Settings, listed: Path | None = None) -> KnownModels:
    """Returns the known models for a base model.

    Args:
        base: Its name, as a run's settings have it.
        settings: The settings of this checkout.
        listed: Another list.
    """
    text = (listed or files("a2rl.provenance") / LIST).read_text(encoding="utf-8")
    names = [row["known"] for row in yaml.safe_load(text) if row["base"] == base.partition("@")[0]]
    folders = {name: _checkpoint(local_folder(name, settings)) for name in names}
    here = {name: folder for name, folder in folders.items() if folder is not None}
    return KnownModels(here, tuple(name for name in names if name not in here))


def _checkpoint(folder: Path | None) -> Path | None:
    """Returns the folder if it has weights."""
    try:
        return folder if folder and folder.is_dir() and tensors_of(folder) else None
    except (A2rlError, OSError):
        return None
