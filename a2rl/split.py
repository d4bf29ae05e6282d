"""The two halves of an eval set: `public` scores are told to the agent, `private` ones are kept for the end.

Both have as many items of each kind, to within one; together they are all.
"""

import random
from collections.abc import Mapping, Sequence

from a2rl.score import STATISTICS, Statistics
from a2rl.task import Split


def split_ids(
    ids: Sequence[str],
    split: Split,
    seed: int,
    kinds: Mapping[str, str] | None = None,
    statistics: Statistics = STATISTICS,
) -> list[str]:
    """The items of a split, in the data's order.

    Args:
        ids: all items.
        split: public and private are disjoint halves that together are all; of an odd number private has one more.
        seed: of the halves.
        kinds: of what kind an item is; those without one are of one kind.
        statistics: the run's; the first drew the halves regardless of kinds.
    """
    if split == "all":
        return list(ids)
    rng = random.Random(seed)
    if statistics == 1:
        public = set(rng.sample(list(ids), k=len(ids) // 2))
    else:
        public = set(_by_kind(ids, kinds or {}, rng)[1::2])
    return [item for item in ids if (item in public) == (split == "public")]


def _by_kind(ids: Sequence[str], kinds: Mapping[str, str], rng: random.Random) -> list[str]:
    """All items, those of a kind side by side: kinds in a random order, and the items of each."""
    members: dict[str, list[str]] = {}
    for item in ids:
        members.setdefault(kinds.get(item, ""), []).append(item)
    groups = [rng.sample(group, k=len(group)) for _, group in sorted(members.items())]
    rng.shuffle(groups)
    return [item for group in groups for item in group]
