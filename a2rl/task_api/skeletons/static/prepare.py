"""The data: what the agent may see, and what only the grader may see."""

import random

from a2rl.task_api.rows import write_eval_rows, write_rows

from . import items

POOLS = ("train", "train", "eval", "drawn")  # which pool an item belongs to follows from the item itself


def rows(seed, pool, count):
    draws, found = random.Random(seed), {}
    for _ in range(100 * count):
        a, b = draws.randint(10, 99), draws.randint(10, 99)
        if random.Random(f"{a}+{b}").choice(POOLS) == pool:
            found[a, b] = {"question": f"What is {a} + {b}?", "answer": str(a + b)}
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"the pool {pool} has too few different items")


def prepare(variant, source, visible, hidden):
    write_rows(items, rows(0, "train", 2000), rows(1, "eval", 200), visible, hidden)


def draw(seed, hidden):  # a secret eval set for each suite; without this function, the one above is used
    write_eval_rows(rows(seed, "drawn", 200), hidden)
