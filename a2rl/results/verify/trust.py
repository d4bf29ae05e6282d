"""Whom a reader of a run trusts besides the run's own files."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from a2rl.anchor.keys import load_public_key
from a2rl.anchor.signer import RemoteSigner, Signer
from a2rl.config.params import load_params
from a2rl.core.settings import Settings


class Trust(NamedTuple):
    """The keys and the signer that a reader trusts."""

    keys: frozenset[str] = frozenset()
    """The public keys whose signatures count. If there is one, the run must be signed."""
    signer: Signer | None = None
    """A signer that can be asked for the last head that it signed."""


NOBODY = Trust()


def trust_of(settings: Settings, public_keys: Iterable[Path] = ()) -> Trust:
    """Returns whom a checkout trusts: the keys given here, or else those of params.yaml, and its signer.

    Raises:
        UsageError: A key cannot be read.
    """
    params = load_params(settings.root).anchor
    paths = list(public_keys) or [settings.root / path for path in params.public_keys]
    signer = RemoteSigner(settings.root / params.signer) if params.signer else None
    return Trust(frozenset(map(load_public_key, paths)), signer)
