"""Bundles that were unpacked, and hostile parts for them and for the folders of runs."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.bundle.audit import Opened, open_bundle
from a2rl.core.settings import Settings


@contextmanager
def opened(bundle: Path, settings: Settings) -> Iterator[Opened]:
    """Unpacks a bundle in this process; it is removed at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        yield open_bundle(bundle, Path(scratch), settings)
