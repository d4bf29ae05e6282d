"""Chooses items of an eval set: a sample of it, and two halves of it or of the sample.

The agent learns its scores on the half `public`; `private` is kept for the final score. Each item is in exactly one
half. For each kind of item, the two halves have the same number, or differ by one. A sample has of each kind the share
that the eval set has of it, rounded up or down.
"""

import random
from collections.abc import Mapping, Sequence

from a2rl.core.errors import UsageError
from a2rl.task_api.contract import Split


def check_limit(limit: int, items: int, task: str, halved: bool) -> None:
    """Checks the size of a sample.

    Args:
        halved: Whether the sample is divided into two halves.

    Raises:
        UsageError: The sample has too many or too few items.
    """
    if limit > items:
        raise UsageError(
            f"--limit {limit:,} is more than the {items:,} items of {task}: leave it out for the whole eval set"
        )
    if halved and limit < 2:
        raise UsageError(
            f"--limit {limit} leaves no items for one of the two halves of {task}: give at least 2, or --protocol paper"
        )


def sample_ids(ids: Sequence[str], size: int, seed: int, kinds: Mapping[str, str] | None = None) -> list[str]:
    """Returns the ids of a sample, in the order of the data.

    Args:
        size: The number of items in the sample, at most as many as there are.
        seed: The seed that decides which items are in the sample.
        kinds: The kind of each item, by id. Items without a kind form one kind together.
    """
    rng = random.Random(f"sample/{seed}")
    ordered = _by_kind(ids, kinds or {}, rng)
    start = rng.random()  # every item is drawn with the same probability
    chosen = {ordered[min(int((place + start) * len(ids) / size), len(ids) - 1)] for place in range(size)}
    return [item for item in ids if item in chosen]


def split_ids(
    ids: Sequence[str],
    split: Split,
    seed: int,
    kinds: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns the ids of a split, in the order of the data.

    Args:
        ids: The ids of all items, or those of a sample.
        split: `public`, `private` or `all`. If the number of items is odd, `private` has one more than `public`.
        seed: The seed that decides which items are in which half.
        kinds: The kind of each item, by id. Items without a kind form one kind together.
    """
    if split == "all":
        return list(ids)
    rng = random.Random(seed)
    public = set(_by_kind(ids, kinds or {}, rng)[1::2])
    return [item for item in ids if (item in public) == (split == "public")]


def _by_kind(ids: Sequence[str], kinds: Mapping[str, str], rng: random.Random) -> list[str]:
    """Returns all items grouped by kind. The order of the kinds, and of the items in each, is random."""
    members: dict[str, list[str]] = {}
    for item in ids:
        members.setdefault(kinds.get(item, ""), []).append(item)
    groups = [rng.sample(group, k=len(group)) for _, group in sorted(members.items())]
    rng.shuffle(groups)
    return [item for group in groups for item in group]
