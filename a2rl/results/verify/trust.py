"""Whom a reader of a run trusts besides the run's own files."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from a2rl.anchor.history import SignedHistory
from a2rl.anchor.keys import load_public_key
from a2rl.anchor.signature import Head
from a2rl.config.params import load_params
from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings


class Trust(NamedTuple):
    """The keys and the heads that a reader trusts."""

    keys: frozenset[str] = frozenset()
    """The public keys whose signatures count. If there is one, the run must be signed."""
    history: SignedHistory | None = None
    """What this checkout's own key has signed."""
    published: tuple[Head, ...] = ()
    """Heads of the run that the reader knows from elsewhere, such as from time stamps."""


NOBODY = Trust()


def trust_of(settings: Settings, public_keys: Iterable[Path] = ()) -> Trust:
    """Returns whom a checkout trusts: the keys given here, or else those of params.yaml, and what its own key signed.

    Raises:
        UsageError: A key cannot be read.
    """
    params = load_params(settings.root).anchor
    paths = list(public_keys) or [settings.root / path for path in params.public_keys]
    history = SignedHistory.beside(settings.root / params.key) if params.key else None
    return Trust(frozenset(map(load_public_key, paths)), history if history and history.path.exists() else None)


def read_published(path: Path, run_id: str) -> tuple[Head, ...]:
    """Reads the published heads of a run from a file with one JSON object in each line.

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
