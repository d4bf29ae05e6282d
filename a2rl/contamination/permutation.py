"""Permutation tests: is a model better on the eval items than on fresh ones, by more than chance explains?"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDS, BATCH = 20_000, 500
SEED = 0
FEWEST = 20
"""With fewer items on one side, nothing is concluded."""


class Gap(NamedTuple):
    """How much better a model is on the eval items."""

    difference: float
    """The mean of the eval items less that of the fresh ones, in the unit of the values."""
    p: float
    """The share of random divisions of all results into two groups that show at least this gap."""
    seen: int
    """The number of eval items."""
    fresh: int
    """The number of fresh items."""

    @property
    def points(self) -> float:
        """The difference in percentage points, for values from 0 to 1."""
        return 100 * self.difference


def gap_between(seen: Mapping[str, float], fresh: Mapping[str, float], of: Sequence[str] | None) -> Gap | None:
    """Compares the values of eval items with those of their twins; None if there is too little of either.

    Args:
        seen: The values of eval items by id.
        fresh: The values of twins by id.
        of: The ids of the items whose twins they are, in order; None if they are another draw.
    """
    if of is None:
        enough = min(len(seen), len(fresh)) >= FEWEST
        return unpaired_gap([*seen.values()], [*fresh.values()]) if enough else None
    pairs = [(seen[of[int(twin)]], value) for twin, value in fresh.items() if of[int(twin)] in seen]
    return paired_gap([old for old, _ in pairs], [new for _, new in pairs]) if len(pairs) >= FEWEST else None


def unpaired_gap(seen: Sequence[float], fresh: Sequence[float]) -> Gap:
    """Compares the values of eval items with those of fresh items from the same source.

    Without a leak, the two are draws from one population, so every division of the results is equally likely. If all
    values are 0 or 1, the divisions are counted exactly (Fisher's test); otherwise random ones are tried.
    """
    values = np.asarray([*seen, *fresh], dtype=np.float64)
    observed = float(values[: len(seen)].mean() - values[len(seen) :].mean())
    p = _exact(values, len(seen)) if np.isin(values, (0.0, 1.0)).all() else _sampled(values, len(seen))
    return Gap(observed, p, len(seen), len(fresh))


def _exact(values: NDArray[np.float64], seen: int) -> float:
    from scipy.stats import hypergeom

    return float(hypergeom.sf(values[:seen].sum() - 1, len(values), values.sum(), seen))


def _sampled(values: NDArray[np.float64], seen: int) -> float:
    rng, observed, beyond = np.random.default_rng(SEED), values[:seen].sum(), 0
    for _ in range(ROUNDS // BATCH):
        shuffled = rng.permuted(np.broadcast_to(values, (BATCH, len(values))), axis=1)
        beyond += int((shuffled[:, :seen].sum(axis=1) >= observed - 1e-9).sum())
    return (beyond + 1) / (ROUNDS + 1)


def paired_gap(seen: Sequence[float], fresh: Sequence[float]) -> Gap:
    """Compares each eval item with its own twin.

    Args:
        seen: The values of the eval items.
        fresh: The values of their twins, in the same order.
    """
    differences = np.asarray(seen, dtype=np.float64) - np.asarray(fresh, dtype=np.float64)
    observed = float(differences.mean())
    rng = np.random.default_rng(SEED)
    moved = differences[differences != 0]
    signs = rng.choice((-1.0, 1.0), size=(ROUNDS, len(moved))) if len(moved) else np.zeros((ROUNDS, 1))
    sums = signs @ moved if len(moved) else np.zeros(ROUNDS)
    beyond = int((sums >= moved.sum() - 1e-9).sum())
    return Gap(observed, (beyond + 1) / (ROUNDS + 1), len(seen), len(fresh))


def selection_bonus(tries: int, items: int) -> float:
    """Returns by how many points the best of several equally good tries is expected to be too high, at most.

    Args:
        tries: The number of distinct tries.
        items: The number of items on which the best was chosen.
    """
    return 100 * 0.5 / math.sqrt(max(1, items)) * math.sqrt(2 * math.log(max(1, tries)))
