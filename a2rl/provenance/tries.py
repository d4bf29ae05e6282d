"""How many different tries a run's submissions are: copies of the base model, or of each other, count once.

Whoever submits the same model again and again with a little noise gets the best of many draws, without training.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.provenance.compare import compare
from a2rl.provenance.kinds import Kind, Provenance

COPIES = (Kind.BASE, Kind.NEAR_COPY)
LIMIT_S = 120.0
NEARER = 0.5
"""A copy is nearer to its original than to the base model, by this factor."""
MOST = 24
"""The number of submissions that are compared at most."""


class Tries(NamedTuple):
    """The submissions of a run, in groups of copies."""

    of_base: tuple[str, ...]
    """The digests of copies of the base model."""
    groups: tuple[tuple[str, ...], ...]
    """The digests of the others; those in one group are copies of each other."""
    not_compared: int
    """The number of submissions for which there was no time or no file."""

    @property
    def effective(self) -> int:
        """The number of different tries."""
        return len(self.groups) + bool(self.of_base)


def count_tries(
    folders: Mapping[str, Path], base: Path, *, better: Collection[str] = (), limit_s: float = LIMIT_S
) -> Tries:
    """Groups checkpoints; each is compared with the base model and with the one before it.

    Args:
        folders: The folders of distinct checkpoints by digest, in the order of submission.
        base: The base model.
        better: The digests of those whose scores show that they are no copies of the base model: noise improves none.
        limit_s: When this time is over, the others are not compared.
    """
    deadline = time.monotonic() + limit_s
    of_base: list[str] = []
    groups: list[list[str]] = []
    chosen = _spread(list(folders), MOST)
    for place, digest in enumerate(chosen):
        if time.monotonic() > deadline:
            return Tries(tuple(of_base), _frozen(groups), len(folders) - place)
        trained = compare(folders[digest], base, digest)
        if trained.kind in COPIES and not (trained.is_noise and digest in better):
            of_base.append(digest)
        elif groups and _is_copy(compare(folders[digest], folders[groups[-1][-1]], digest), trained):
            groups[-1].append(digest)
        else:
            groups.append([digest])
    return Tries(tuple(of_base), _frozen(groups), len(folders) - len(chosen))


def _is_copy(from_last: Provenance, from_base: Provenance) -> bool:
    """Returns whether a checkpoint is the last one with noise that is small beside what training changed."""
    return from_last.kind in COPIES and from_last.delta < NEARER * from_base.delta


def _spread(digests: list[str], most: int) -> list[str]:
    step = max(1, -(-len(digests) // most))
    return digests[::step]


def _frozen(groups: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(group) for group in groups)
