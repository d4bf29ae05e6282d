"""The two halves of an eval set: `public` scores are told to the agent, `private` ones are kept for the end."""

import random
from collections.abc import Sequence

from a2rl.task import Split


def split_ids(ids: Sequence[str], split: Split, seed: int) -> list[str]:
    """The items of a split, in the data's order. Public and private are disjoint halves that together are all."""
    if split == "all":
        return list(ids)
    public = set(random.Random(seed).sample(list(ids), k=len(ids) // 2))
    return [item for item in ids if (item in public) == (split == "public")]
