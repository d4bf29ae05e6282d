"""What of a run is known not to be here, such as in a bundle without weights."""

from typing import NamedTuple


class Away(NamedTuple):
    """Parts of a run that cannot be checked here; that says nothing against the run."""

    weights: frozenset[str] = frozenset()
    """The digests of checkpoints whose weights are elsewhere."""
    base_model: bool = False
    """The base model is only known by its name, and what has that name here may be another build of it."""
    files: frozenset[str] = frozenset()
    """Paths of files in the run directory that were left out."""


NOTHING = Away()
