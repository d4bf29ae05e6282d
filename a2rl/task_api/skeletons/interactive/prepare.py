"""The data: what the agent may see, and what only the grader may see."""

import random

from a2rl.task_api.rows import write_eval_rows, write_rows

from . import items

POOLS = ("train", "train", "eval", "drawn")  # which pool an item belongs to follows from the item itself


def rows(seed, pool, count):
    draws, found = random.Random(seed), {}
    for _ in range(100 * count):
        low = draws.randint(100, 900)
        number = low + draws.randint(0, 30)
        if random.Random(f"{low} {number}").choice(POOLS) == pool:
            found[low, number] = {"low": low, "number": number}
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"the pool {pool} has too few different items")


def prepare(variant, source, visible, hidden):
    write_rows(items, rows(0, "train", 2000), rows(1, "eval", 100), visible, hidden)


def draw(seed, hidden):  # a secret eval set for each suite; without this function, the one above is used
    write_eval_rows(rows(seed, "drawn", 100), hidden)
