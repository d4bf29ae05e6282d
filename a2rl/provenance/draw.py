"""Draws the rows of a matrix that are looked at: nobody knows them before the checkpoint is final, anybody can repeat
the draw.

The generator is seeded with SHA-256 of the checkpoint's weights digest, the tensor's name and the purpose. The rule has
no secret. But whoever changes a single weight, in order to hide something in rows that are not looked at, changes the
digest, and with it which rows these are.
"""

import hashlib

import numpy as np

from a2rl.provenance.arrays import Places


def draw(count: int, of: int, digest: str, name: str, purpose: str = "rows") -> Places:
    """Returns `count` different places below `of` in ascending order; all places if there are not more.

    Args:
        count: How many to draw.
        of: The number of places.
        digest: The digest of the checkpoint's weights.
        name: The tensor's name.
        purpose: Draws for different purposes are independent.
    """
    if of <= count:
        return np.arange(of)
    seed = int.from_bytes(hashlib.sha256(f"{digest}\n{name}\n{purpose}".encode()).digest(), "big")
    chosen = np.random.default_rng(seed).choice(of, size=count, replace=False, shuffle=False)
    return np.sort(chosen)
