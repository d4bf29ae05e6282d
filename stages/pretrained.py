"""Stage `model` (DVC): a pretrained base model of the catalogue, downloaded and converted again."""

from pathlib import Path

from a2rl.core.settings import Settings
from a2rl.models.pretrained import CATALOGUE
from a2rl.models.pretrained_store import PretrainedStore


def pretrained(name: str, settings: Settings) -> Path:
    """Makes `models/<name>/` and returns the folder of the checkpoint in it; the same packages give the same bytes."""
    return PretrainedStore(settings).make_again(CATALOGUE[name])
