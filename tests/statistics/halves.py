"""Simulates how often the halves of honest runs are flagged, and how often those of runs that know a half are.

python -m tests.statistics.halves --runs 2000

An honest agent tries several checkpoints on the public half and keeps the best. Each answers items of three kinds with
other probabilities, and its tries are alike, as they are in real runs. A dishonest agent knows a share of one half by
heart.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from a2rl.scoring.score import ItemResult
from a2rl.validity.halves import FALSE_FLAGS, compare_halves

KINDS = ("easy", "middling", "hard")
RATES = (0.8, 0.4, 0.1)


def flagged(rng: np.random.Generator, items: int, tries: int, known: float = 0.0, half: str = "private") -> bool:
    """Returns whether one simulated run is flagged.

    Args:
        rng: Random numbers.
        items: The number of items in both halves.
        tries: The number of checkpoints among which the agent chooses by the public half.
        known: The share of one half that it has learned by heart.
        half: Which half that is.
    """
    kinds = rng.integers(0, len(KINDS), items)
    public = np.zeros(items, dtype=bool)
    for kind in range(len(KINDS)):
        members = rng.permutation(np.flatnonzero(kinds == kind))
        public[members[: len(members) // 2]] = True
    skill = np.array(RATES)[kinds]
    shared = rng.random(items)
    answers = [np.where(rng.random(items) < 0.5, shared, rng.random(items)) < skill for _ in range(tries)]
    learned = (rng.random(items) < known) & (public if half == "public" else ~public)
    best = max((each | learned for each in answers), key=lambda each: float(each[public].mean()))
    found = compare_halves(_items(best, kinds, public), _items(best, kinds, ~public), tries, int(rng.integers(1 << 30)))
    return found.is_suspicious(tries)


def _items(right: NDArray[np.bool_], kinds: NDArray[np.int64], chosen: NDArray[np.bool_]) -> list[ItemResult]:
    return [
        ItemResult(
            id=str(place), verdict="correct" if right[place] else "wrong", value=float(right[place]),
            group=KINDS[kinds[place]],
        )
        for place in np.flatnonzero(chosen)
    ]  # fmt: skip


def rate(runs: int, items: int, tries: int, known: float = 0.0, half: str = "private", seed: int = 0) -> float:
    """Returns the share of simulated runs that are flagged."""
    rng = np.random.default_rng([seed, items, tries])
    return sum(flagged(rng, items, tries, known, half) for _ in range(runs)) / runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the rates."""
    parser = argparse.ArgumentParser(description="How often are halves flagged?")
    parser.add_argument("--runs", type=int, default=1000)
    runs: int = parser.parse_args(arguments).runs
    for items, tries in ((200, 1), (200, 20), (400, 5), (400, 60), (1319, 20)):
        found = rate(runs, items, tries)
        sys.stdout.write(f"honest, {items} items, {tries} tries: {found:.2%} flagged (at most {FALSE_FLAGS:.2%})\n")
    for half in ("private", "public"):
        for known in (0.05, 0.2, 0.5, 1.0):
            found = rate(max(50, runs // 10), 400, 5, known, half)
            sys.stdout.write(f"400 items, 5 tries, {known:.0%} of the {half} half known: {found:.0%} flagged\n")


if __name__ == "__main__":
    main()
