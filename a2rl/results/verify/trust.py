"""Whom a reader of a run trusts besides the run's own files."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from a2rl.anchor.keys import load_public_key
from a2rl.anchor.signature import Head
from a2rl.anchor.signer import RemoteSigner, Signer
from a2rl.config.params import load_params
from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings


class Trust(NamedTuple):
    """The keys and the signer that a reader trusts."""

    keys: frozenset[str] = frozenset()
    """The public keys whose signatures count. If there is one, the run must be signed."""
    signer: Signer | None = None
    """A signer that can be asked for the last head that it signed."""
    published: tuple[Head, ...] = ()
    """Heads of the run that the reader has from a place where they were published."""


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


def read_published(path: Path, run_id: str) -> tuple[Head, ...]:
    """Reads the published heads of a run from a file with one JSON object in each line, such as that of a git place.

    Raises:
        UsageError: The file cannot be read, or names no head of the run.
    """
    try:
        rows = [row for row in read_jsonl(path) if row.get("run") == run_id]
        heads = tuple(Head(seq=row["seq"], hash=row["hash"]) for row in rows)
    except (OSError, ValueError, KeyError, IntegrityError) as error:
        raise UsageError(f"{path} does not have published heads, one JSON object in each line: {error}") from error
    if not heads:
        raise UsageError(f"{path} has no head of run {run_id}")
    return heads
